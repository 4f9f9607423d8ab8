"""CASES of delivery with real sockets: late joiners, gaps, restarts, both forms of replies, idle engines."""

import threading
from typing import Any

import msgspec
import pytest

from goldens import archive, capture
from kvevents.transport import DeliverySettings, Reason, Source, State, Subscriber, ZmqPublisher
from kvevents.wire import decode_batch
from reached import reached
from recording_sink import RecordingSink
from zmq_peers import PlainEngine, out_of_breath, until

pytestmark = pytest.mark.integration

QUICK = DeliverySettings(replay_timeout_s=0.2, idle_probe_s=0.1, settle_s=0.02, retry_max_s=0.2)
PATIENT = DeliverySettings(idle_probe_s=600, settle_s=600)


def source(engine: PlainEngine, *, replay: bool = True, topic: str = "kv") -> Source:
    return Source("w", engine.endpoint, replay_endpoint=engine.replay_endpoint if replay else None, topic=topic)


def test_case_14_a_late_joiner_applies_the_past_then_the_present_each_once() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine:
        for n in range(57):
            engine.publish(b"%d" % n, live=False)
        with Subscriber([source(engine)], sink, settings=PATIENT) as subscriber:
            assert subscriber.wait_live(20)
            until(lambda: engine.publish(b"later") and len(sink.applied) > 57)
            until(lambda: len(sink.applied) == len(engine.buffer))
        assert sink.sequences() == list(range(len(engine.buffer)))
        assert sink.payloads() == list(engine.buffer.values())
        assert sink.clears == []


def test_case_14_an_idle_engine_is_known_completely_at_once() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine:
        for n in range(3):
            engine.publish(b"%d" % n, live=False)
        with Subscriber([source(engine)], sink, settings=PATIENT) as subscriber:
            assert subscriber.wait_live(20)
            assert sink.sequences() == [0, 1, 2]


def test_case_14_a_buffer_that_starts_late_is_applied_and_never_complete() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine:
        for n in range(40, 57):
            engine.publish(b"%d" % n, sequence=n, live=False)
        with Subscriber([source(engine)], sink, settings=QUICK) as subscriber:
            state = reached(subscriber, State.DEGRADED, Reason.REPLAY_STARTS_LATE)
            assert "40" in state.reason
            until(lambda: sink.sequences() == list(range(40, 57)))
            until(lambda: subscriber.state("w").counters.probes > 3)
            assert subscriber.state("w").state is State.DEGRADED
            assert not subscriber.wait_live(0)


def test_case_14_without_replay_a_late_joiner_is_degraded_with_the_reason() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine, Subscriber([source(engine, replay=False)], sink) as subscriber:
        reached(subscriber, State.DEGRADED, Reason.FIRST_BATCH_AWAITED)
        until(lambda: engine.publish(b"x", sequence=57 + len(engine.buffer)) and sink.applied)
        assert "no replay endpoint" in reached(subscriber, State.DEGRADED, Reason.LATE_JOIN).reason


def test_case_15_a_sequence_that_moves_back_is_a_restart_without_replay_too() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine, Subscriber([source(engine, replay=False)], sink) as subscriber:
        until(lambda: engine.publish(b"x", sequence=100) and sink.applied)
        engine.publish(b"y", sequence=101)
        engine.publish(b"new 0", sequence=0)
        engine.publish(b"new 1", sequence=1)
        until(lambda: sink.payloads() == [b"new 0", b"new 1"])
        state = reached(subscriber, State.LIVE)
        assert (state.counters.restarts, sink.clears) == (1, [("w", None)])


def test_case_15_a_restart_unseen_during_a_reconnect_is_found_by_its_replay_socket() -> None:
    sink = RecordingSink()
    with PlainEngine() as old:
        for n in range(102):
            old.publish(b"old %d" % n, live=False)
        with Subscriber([source(old)], sink, settings=PATIENT) as subscriber:
            assert subscriber.wait_live(20)
            old.close()
            assert "connection broke" in reached(subscriber, State.LOST, Reason.CONNECTION_LOST).reason
            with PlainEngine(endpoint=old.endpoint, replay_endpoint=old.replay_endpoint) as new:
                for n in range(200):
                    new.publish(b"new %d" % n, live=False)
                until(lambda: sink.payloads() == [b"new %d" % n for n in range(200)])
                state = reached(subscriber, State.LIVE)
                assert new.requests[:2] == [101, 0]
                assert (state.counters.restarts, state.counters.reconnects) == (1, 1)
                until(lambda: new.publish(b"live") and sink.payloads()[-1] == b"live")


def test_case_15_duplicates_are_no_restart() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine, Subscriber([source(engine, replay=False)], sink) as subscriber:
        until(lambda: engine.publish(b"0", sequence=0) == 0 and sink.applied)
        engine.publish(b"1", sequence=1)
        engine.publish(b"0", sequence=0)
        engine.publish(b"1", sequence=1)
        engine.publish(b"2", sequence=2)
        until(lambda: sink.payloads() == [b"0", b"1", b"2"])
        counters = subscriber.state("w").counters
        assert (counters.restarts, counters.duplicates >= 2) == (0, True)


def test_a_gap_is_filled_through_the_replay_socket() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine, Subscriber([source(engine)], sink, settings=PATIENT) as subscriber:
        until(lambda: engine.publish(b"x") >= 0 and sink.applied)
        until(lambda: len(sink.applied) == len(engine.buffer))
        before = reached(subscriber, State.LIVE).counters
        for _ in range(5):
            engine.publish(b"lost", live=False)
        engine.publish(b"after")
        until(lambda: sink.payloads() == list(engine.buffer.values()))
        after = reached(subscriber, State.LIVE).counters
        assert (after.missing, after.gaps) == (0, before.gaps + 1)
        gap = "live>recovering:gap"
        assert after.transitions[gap] == before.transitions.get(gap, 0) + 1


@pytest.mark.parametrize("with_topic", [True, False])
def test_case_16_replies_with_and_without_topic_are_applied(with_topic: bool) -> None:
    sink = RecordingSink()
    with PlainEngine() as engine:
        engine.with_topic = with_topic
        engine.publish(b"0", live=False)
        engine.publish(b"1", live=False)
        with Subscriber([source(engine)], sink, settings=PATIENT) as subscriber:
            assert subscriber.wait_live(20)
            assert sink.payloads() == [b"0", b"1"]


def test_case_16_recorded_frames_of_sglang_are_carried_unchanged() -> None:
    recorded: dict[str, Any] = msgspec.json.decode(archive("sglang")["sglang_zmq_frames.json"])
    batches = [bytes.fromhex(frames[2]) for frames in recorded["live"]]
    sink = RecordingSink()
    with PlainEngine() as engine:
        engine.publish(batches[0], live=False)
        engine.publish(batches[1], live=False)
        with Subscriber([source(engine)], sink, settings=PATIENT) as subscriber:
            assert subscriber.wait_live(20)
            for payload in batches[2:]:
                engine.publish(payload)
            engine.publish(batches[4])
            until(lambda: len(sink.applied) == 6)
        assert sink.payloads() == [*batches, batches[4]]
        assert [decode_batch(payload).ts for payload in sink.payloads()[:5]] == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("name", ["v0.19.1_sha256_cbor_bs16.jsonl", "sha256_cbor.jsonl"])
def test_case_16_recorded_replies_of_vllm_are_applied_as_they_were_sent(name: str) -> None:
    lines = [
        [bytes.fromhex(frame) for frame in line["frames"]] for line in capture(name) if line.get("dir") == "replay"
    ]
    first_answer = lines[: next(n for n, frames in enumerate(lines) if not frames[-1])]
    sink = RecordingSink()
    with PlainEngine() as engine:
        engine.topic = b"kv-events"
        engine.with_topic = len(first_answer[0]) == 4
        for frames in first_answer:
            engine.publish(frames[-1], sequence=int.from_bytes(frames[-2], "big"), live=False)
        with Subscriber([source(engine, topic="kv-events")], sink, settings=PATIENT) as subscriber:
            assert subscriber.wait_live(20)
        assert sink.payloads() == [frames[-1] for frames in first_answer]


def test_case_17_what_a_full_queue_drops_from_the_live_stream_is_a_gap_that_a_replay_repairs() -> None:
    sink = RecordingSink()
    any_port = "tcp://127.0.0.1:*"
    with ZmqPublisher(any_port, replay_endpoint=any_port, max_queue_size=1) as publisher:
        link = Source("w", publisher.endpoint, replay_endpoint=publisher.replay_endpoint)
        with Subscriber([link], sink, settings=PATIENT) as subscriber:
            assert subscriber.wait_live(20)
            until(lambda: publisher.publish(b"x") >= 0 and sink.applied)
            with out_of_breath(publisher):
                for n in range(10):
                    publisher.publish(b"burst %d" % n)
            until(lambda: publisher.stats().queued == 0)
            last = publisher.publish(b"after")
            until(lambda: sink.sequences() == list(range(last + 1)))
            assert publisher.stats().dropped >= 8
            state = reached(subscriber, State.LIVE)
            assert (state.counters.gaps, state.counters.missing) == (1, 0)


def test_case_17_a_consumer_that_stood_still_is_right_after_it_resumes() -> None:
    """Its queues ran full, and so did the publisher's for it; the publisher never waited."""
    go_on = threading.Event()
    go_on.set()
    sink = RecordingSink(fails=lambda _: assert_(go_on.wait(20)))
    any_port = "tcp://127.0.0.1:*"
    small = DeliverySettings(receive_hwm=10)
    with ZmqPublisher(any_port, replay_endpoint=any_port, hwm=10) as publisher:
        link = Source("w", publisher.endpoint, replay_endpoint=publisher.replay_endpoint)
        with Subscriber([link], sink, settings=small) as subscriber:
            assert subscriber.wait_live(20)
            until(lambda: publisher.publish(b"x") >= 0 and sink.applied)
            go_on.clear()
            for n in range(3_000):
                last = publisher.publish(b"%d" % n + bytes(8_192))
            until(lambda: publisher.stats().queued == 0)
            assert subscriber.state("w").counters.received < last
            go_on.set()
            until(lambda: sink.sequences() == list(range(last + 1)))
            assert reached(subscriber, State.LIVE).counters.gaps > 0


def assert_(condition: bool) -> None:
    assert condition


def test_case_17_a_number_that_an_engine_used_up_without_a_batch_is_said() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine, Subscriber([source(engine)], sink, settings=PATIENT) as subscriber:
        assert subscriber.wait_live(20)
        until(lambda: engine.publish(b"x") >= 0 and sink.applied)
        last = engine.publish(b"x")
        engine.publish(b"after", sequence=last + 4)
        state = reached(subscriber, State.DEGRADED, Reason.BATCH_MISSING)
        assert state.counters.missing == 3


def test_case_18_a_lost_last_batch_of_an_idle_engine_is_found() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine, Subscriber([source(engine)], sink, settings=QUICK) as subscriber:
        assert subscriber.wait_live(20)
        until(lambda: engine.publish(b"x") >= 0 and subscriber.state("w").counters.received)
        last = engine.publish(b"the last one", live=False)
        until(lambda: last in sink.sequences())
        until(lambda: subscriber.state("w").counters.found_by_probe)
        assert subscriber.state("w").state is State.LIVE


def test_case_18_the_last_batch_of_our_publisher_needs_no_further_traffic() -> None:
    sink = RecordingSink()
    with ZmqPublisher("tcp://127.0.0.1:*") as publisher, Subscriber([Source("w", publisher.endpoint)], sink):
        until(lambda: publisher.publish(b"x") >= 0 and sink.applied)
        last = publisher.publish(b"last")
        until(lambda: last in sink.sequences())


def test_a_replay_socket_that_does_not_answer_leaves_the_stream_flowing() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine, Subscriber([source(engine)], sink, settings=QUICK) as subscriber:
        engine.answers = False
        until(lambda: engine.publish(b"x", sequence=57 + len(engine.buffer)) and len(sink.applied) > 3)
        state = reached(subscriber, State.DEGRADED)
        assert state.code in {Reason.LATE_JOIN, Reason.REPLAY_SILENT, Reason.GAP_UNREPAIRED}
        assert state.counters.timeouts >= 1


def test_a_replay_socket_that_answers_again_completes_the_picture() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine:
        engine.answers = False
        engine.publish(b"early", live=False)
        with Subscriber([source(engine)], sink, settings=QUICK) as subscriber:
            until(lambda: engine.publish(b"x") and sink.applied)
            reached(subscriber, State.DEGRADED)
            engine.answers = True
            reached(subscriber, State.LIVE)
            until(lambda: sink.payloads() == list(engine.buffer.values()))


def test_a_topic_that_the_engine_does_not_use_is_said() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine, Subscriber([source(engine, topic="other")], sink, settings=QUICK) as subscriber:
        until(lambda: engine.publish(b"x") >= 0 and sink.applied)
        assert "'other'" in reached(subscriber, State.DEGRADED, Reason.TOPIC_MISMATCH).reason


def test_a_topic_that_older_engines_do_not_tell_is_suspected() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine, Subscriber([source(engine, topic="other")], sink, settings=QUICK) as subscriber:
        engine.with_topic = False
        until(lambda: engine.publish(b"x") >= 0 and subscriber.state("w").code is Reason.NOTHING_LIVE)
        assert "topic" in reached(subscriber, State.DEGRADED, Reason.NOTHING_LIVE).reason
