"""`ZmqPublisher` as a consumer sees it that was written against SGLang or vLLM."""

import contextlib
import resource
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

from kvevents.errors import ConfigError, TransportError
from kvevents.events import BlockRemoved, KVEventBatch
from kvevents.hashing import HashChain
from kvevents.recorder import EventRecorder
from kvevents.transport import SnapshotDownload, ZmqPublisher
from kvevents.transport.snapshot import SNAPSHOT_MARK, digest_of
from kvevents.wire import Dialect, decode_batch
from zmq_peers import END, first_live, number, out_of_breath, replay, sockets, until

pytestmark = pytest.mark.integration
ANY = "tcp://127.0.0.1:*"


def test_live_messages_are_topic_sequence_and_payload() -> None:
    with ZmqPublisher(ANY, topic="kv") as publisher, sockets() as make:
        sub = make(zmq.SUB, subscribe=b"kv")
        sub.connect(publisher.endpoint)
        _, first, _ = first_live(sub, lambda: publisher.publish(b"x"))
        for n in range(3):
            publisher.publish(b"payload %d" % n)
        tail = [sub.recv_multipart()]
        while tail[-1][2] != b"payload 2":
            tail.append(sub.recv_multipart())
        assert {frames[0] for frames in tail} == {b"kv"}
        start = int.from_bytes(first, "big")
        assert [frames[1] for frames in tail] == [number(start + 1 + n) for n in range(len(tail))]
        assert [frames[2] for frames in tail[-3:]] == [b"payload 0", b"payload 1", b"payload 2"]


def test_replay_repeats_from_the_start_asked_for_and_ends_with_a_mark() -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY, topic="kv", buffer_steps=4) as publisher, sockets() as make:
        for n in range(6):
            publisher.publish(b"%d" % n)
        until(lambda: publisher.stats().published == 6)
        assert publisher.replay_endpoint is not None
        dealer = make(zmq.DEALER)
        dealer.connect(publisher.replay_endpoint)
        end = [b"", b"", END, b""]
        assert replay(dealer, 4) == [[b"", b"kv", number(4), b"4"], [b"", b"kv", number(5), b"5"], end]
        assert [frames[2] for frames in replay(dealer, 0)] == [number(n) for n in (2, 3, 4, 5)] + [END]
        assert replay(dealer, 6) == [end]
        request = make(zmq.REQ)
        request.connect(publisher.replay_endpoint)
        request.send(number(6))
        assert request.recv_multipart() == end[1:]
        stats = publisher.stats()
        assert (stats.replayed, stats.replay_requests, stats.last_sequence) == (6, 4, 5)


def test_a_message_that_is_no_request_gets_no_answer_and_is_counted() -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher, sockets() as make:
        dealer = make(zmq.DEALER)
        assert publisher.replay_endpoint is not None
        dealer.connect(publisher.replay_endpoint)
        for frames in ([number(0)], [b"", number(0), b""], [b"", b"0"], [b"x", number(0)]):
            dealer.send_multipart(frames)
        assert replay(dealer, 0) == [[b"", b"", END, b""]]
        assert publisher.stats().malformed_requests == 4


@pytest.mark.parametrize("which", ["live", "replay"])
def test_a_peer_that_sends_more_than_any_request_has_is_cut_off(which: str) -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher, sockets() as make:
        assert publisher.replay_endpoint is not None
        endpoint = publisher.endpoint if which == "live" else publisher.replay_endpoint
        hostile = make(zmq.XSUB if which == "live" else zmq.DEALER, reconnect_ivl=-1)
        gone = hostile.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        hostile.connect(endpoint)
        hostile.send_multipart([b"\x01" + bytes(4_097)] if which == "live" else [b"", bytes(4_097)])
        cut_off = gone.poll(5_000)
        hostile.disable_monitor()
        gone.close()
        assert cut_off

        dealer = make(zmq.DEALER)
        dealer.connect(publisher.replay_endpoint)
        publisher.publish(b"batch")
        assert [frames[-1] for frames in replay(dealer, 0)[:1]] == [b"batch"], "others are served"
        assert publisher.stats().malformed_requests == 0


def test_whoever_asks_without_end_holds_up_nothing_that_is_live() -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY, topic="kv", linger_s=0) as publisher, sockets() as make:
        assert publisher.replay_endpoint is not None
        for _ in range(2_000):
            publisher.publish(b"past")
        sub = make(zmq.SUB, subscribe=b"kv")
        sub.connect(publisher.endpoint)
        first_live(sub, lambda: publisher.publish(b"present"))
        flood = make(zmq.DEALER, rcvhwm=1)  # asks, and does not read
        flood.connect(publisher.replay_endpoint)
        for _ in range(500):
            flood.send_multipart([b"", number(0)])
        until(lambda: publisher.stats().replay_requests > 0)
        publisher.publish(b"news")
        while sub.recv_multipart()[2] != b"news":
            pass
        assert publisher.stats().replay_requests < 400, "all answers came before what is live"
        started = time.monotonic()
    assert time.monotonic() - started < 5, "closing waited for all answers"


def test_batches_are_encoded_and_get_the_publishers_rank() -> None:
    batch = KVEventBatch(ts=1.0, events=[BlockRemoved([7], medium="GPU")])
    with ZmqPublisher(ANY, replay_endpoint=ANY, dp_rank=3) as publisher, sockets() as make:
        publisher.publish(batch)
        assert batch.attn_dp_rank is None
        assert publisher.replay_endpoint is not None
        dealer = make(zmq.DEALER)
        dealer.connect(publisher.replay_endpoint)
        first, _ = replay(dealer, 0)
        assert decode_batch(first[3]).attn_dp_rank == 3
        assert decode_batch(first[3]).events == batch.events


@pytest.mark.parametrize("dialect", ["sglang", "sglang-array", "vllm", "vllm-array"])
@pytest.mark.parametrize("rank", [0, 3, 300])
def test_a_batch_of_another_rank_is_refused_where_it_would_be_taken_for_that_ranks(dialect: Dialect, rank: int) -> None:
    recorder = EventRecorder(1)
    recorder.store(HashChain.root(1).extend([5]), [5])
    with ZmqPublisher("inproc://ranks", dp_rank=3, bind=True) as publisher:
        payload = recorder.take_batch(dp_rank=rank, dialect=dialect)
        assert payload is not None
        if rank == 3:
            assert publisher.publish(payload) == 0
            return
        for batch in (payload, KVEventBatch(1.0, [], attn_dp_rank=rank)):
            with pytest.raises(ConfigError, match=rf"batch of rank {rank}: expected rank 3.*take_batch\(dp_rank=3\)"):
                publisher.publish(batch)
        assert publisher.stats().last_sequence is None, "no number was used"
    with ZmqPublisher("inproc://ranks", dp_rank=None, bind=True) as publisher:
        assert publisher.publish(payload) == 0


def test_an_inproc_name_is_free_again_once_its_publisher_is_closed() -> None:
    for _ in range(50):
        ZmqPublisher("inproc://again", replay_endpoint="inproc://again-replay").close()


def test_batches_that_name_no_rank_and_bytes_that_are_no_batch_pass() -> None:
    with ZmqPublisher("inproc://no-rank", dp_rank=3) as publisher:
        for payload in (b"", b"\xc1", b"\x92\x00\x90", b"\x93\x00\x90\xc0", b"\x82\xa2ts\x00\xa6events\x90"):
            publisher.publish(payload)
        until(lambda: publisher.stats().published == 5)


def test_any_buffer_is_a_payload_and_nothing_else_is() -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher, sockets() as make:
        publisher.publish(bytearray(b"array"))
        publisher.publish(memoryview(b"view"))
        for nonsense in (None, 5, "text"):
            with pytest.raises(TypeError):
                publisher.publish(nonsense)  # type: ignore[arg-type]  # wrong on purpose
        until(lambda: publisher.stats().published == 2)
        assert publisher.replay_endpoint is not None
        dealer = make(zmq.DEALER)
        dealer.connect(publisher.replay_endpoint)
        assert [frames[3] for frames in replay(dealer, 0)] == [b"array", b"view", b""]


def test_a_full_queue_drops_whole_batches_from_the_live_stream_and_they_are_repeated_all_the_same() -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY, topic="kv", max_queue_size=1) as publisher, sockets() as make:
        sub = make(zmq.SUB, subscribe=b"kv")
        sub.connect(publisher.endpoint)
        _, before, _ = first_live(sub, lambda: publisher.publish(b"x"))
        until(lambda: publisher.stats().queued == 0)
        while sub.poll(50):
            _, before, _ = sub.recv_multipart()
        start = int.from_bytes(before, "big") + 1
        with out_of_breath(publisher):
            publisher.publish(b"0")
            until(lambda: publisher.stats().queued == 0)
            began = time.monotonic()
            assert [publisher.publish(b"%d" % n) for n in range(1, 10)] == list(range(start + 1, start + 10))
            assert time.monotonic() - began < 1.0
            stats = publisher.stats()
            assert (stats.dropped, stats.queued, stats.last_sequence) == (8, 1, start + 9)
        until(lambda: publisher.stats().published == start + 2)
        publisher.publish(b"after")
        live = [sub.recv_multipart()[1:] for _ in range(3)]
        assert live == [[number(start), b"0"], [number(start + 1), b"1"], [number(start + 10), b"after"]]
        assert publisher.replay_endpoint is not None
        dealer = make(zmq.DEALER)
        dealer.connect(publisher.replay_endpoint)
        assert [frames[2] for frames in replay(dealer, start)] == [number(start + n) for n in range(11)] + [END]


def test_close_loses_nothing_that_was_queued_and_can_be_repeated() -> None:
    with sockets() as make:
        publisher = ZmqPublisher(ANY, linger_s=10)
        sub = make(zmq.SUB, subscribe=b"")
        sub.connect(publisher.endpoint)
        first_live(sub, lambda: publisher.publish(b"x"))
        for n in range(5_000):
            publisher.publish(b"%d" % n)
        publisher.close()
        publisher.close()
        payloads = [sub.recv_multipart()[2]]
        while payloads[-1] != b"4999":
            payloads.append(sub.recv_multipart()[2])
        assert payloads[-5_000:] == [b"%d" % n for n in range(5_000)]
        assert publisher.stats().queued == 0
        with pytest.raises(TransportError, match="closed"):
            publisher.publish(b"y")


def test_close_does_not_wait_for_a_consumer_that_never_comes() -> None:
    began = time.monotonic()
    with ZmqPublisher("tcp://127.0.0.1:9", bind=False, linger_s=0.2) as publisher:
        publisher.publish(b"x")
    assert time.monotonic() - began < 5


def test_each_rank_has_its_own_port() -> None:
    for _ in range(50):  # the next port may be another process's
        with contextlib.suppress(TransportError, ConfigError), ZmqPublisher(ANY) as zero:
            host, _, port = zero.endpoint.rpartition(":")
            with ZmqPublisher(zero.endpoint, dp_rank=1, bind=True) as one:
                assert one.endpoint == f"{host}:{int(port) + 1}"
                return
    pytest.fail("no two free ports in a row")


def test_ranks_on_an_ipc_path_start_and_keep_their_own_paths(tmp_path: Path) -> None:
    path = f"ipc://{tmp_path}/kv"
    with (
        ZmqPublisher(path, replay_endpoint=f"{path}-replay") as rank_0,
        ZmqPublisher(path, replay_endpoint=f"{path}-replay", dp_rank=1) as rank_1,
        sockets() as make,
    ):
        assert (rank_0.endpoint, rank_1.endpoint) == (path, f"{path}_dp1")
        assert rank_1.replay_endpoint == f"{path}-replay_dp1"
        sub = make(zmq.SUB, subscribe=b"")
        sub.connect(rank_1.endpoint)
        assert first_live(sub, lambda: rank_1.publish(b"one"))[2] == b"one"


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("tcp://localhost:0", "tcp://127.0.0.1:"),
        ("tcp://0.0.0.0:*", "tcp://0.0.0.0:"),
        ("tcp://*:*", "tcp://0.0.0.0:"),
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:"),
        ("tcp://[::]:*", "tcp://[::]:"),
        ("tcp://[::1]:*", "tcp://[::1]:"),
    ],
)
def test_every_way_to_write_this_machine_binds_a_free_port(given: str, used: str) -> None:
    with ZmqPublisher(given, bind=True) as publisher, sockets() as make:
        host, _, port = publisher.endpoint.rpartition(":")
        assert f"{host}:" == used
        assert int(port) > 0
        sub = make(zmq.SUB, subscribe=b"", ipv6=1)
        sub.connect(f"tcp://[::1]:{port}" if "[" in used else f"tcp://127.0.0.1:{port}")
        assert first_live(sub, lambda: publisher.publish(b"x"))[2] == b"x"


def test_a_publisher_for_a_concrete_host_connects_to_the_consumer_that_binds() -> None:
    with sockets() as make:
        sub = make(zmq.SUB, subscribe=b"")
        port = sub.bind_to_random_port("tcp://127.0.0.1")
        with ZmqPublisher(f"tcp://127.0.0.1:{port}") as publisher:
            assert first_live(sub, lambda: publisher.publish(b"x"))[2] == b"x"


@pytest.mark.parametrize("which", ["endpoint", "replay_endpoint"])
def test_an_endpoint_in_use_is_named(which: str, tmp_path: Path) -> None:
    with ZmqPublisher(ANY) as tcp, ZmqPublisher(f"ipc://{tmp_path}/kv") as ipc:
        for used in (tcp.endpoint, ipc.endpoint):
            arguments = {"endpoint": ANY, which: used}
            with pytest.raises(TransportError, match="in use") as caught:
                ZmqPublisher(bind=True, **arguments)  # type: ignore[arg-type]  # keywords by name
            assert used in str(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("tcp://192.0.2.1:5557", "not an address of this machine"),
        ("tcp://no-such-host.invalid:5557", "not an address of this machine"),
        ("ipc:///no/such/folder/kv", "folder"),
        ("ipc:///run/" + "x" * 200, "too long"),
    ],
)
def test_what_cannot_be_bound_says_why(endpoint: str, says: str) -> None:
    with pytest.raises(TransportError, match=says) as caught:
        ZmqPublisher(endpoint, bind=True)
    assert endpoint in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"snapshot": "x"},
        {"buffer_steps": -1},
        {"hwm": -1},
        {"max_queue_size": 0},
        {"dp_rank": -1},
        {"endpoint": "nonsense"},
        {"replay_endpoint": "nonsense"},
        {"endpoint": ANY, "bind": False},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ZmqPublisher(**({"endpoint": ANY} | settings))  # type: ignore[arg-type]  # wrong on purpose


def test_memory_is_bounded_while_a_consumer_takes_nothing() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    limits: dict[str, Any] = {"buffer_steps": 50, "hwm": 50, "max_queue_size": 50, "linger_s": 0}
    with ZmqPublisher(ANY, replay_endpoint=ANY, **limits) as publisher, sockets() as make:
        sub = make(zmq.SUB, subscribe=b"", rcvhwm=1, rcvbuf=1 << 16)
        sub.connect(publisher.endpoint)
        first_live(sub, lambda: publisher.publish(b"x"))
        before = resident()
        for n in range(4_000):
            publisher.publish(n.to_bytes(4, "big") + bytes(1 << 16))
        until(lambda: publisher.stats().queued == 0)
        assert publisher.stats().published + publisher.stats().dropped >= 4_000
        assert resident() - before < 60 << 20, "of 250 MiB that were published"


def test_what_fails_within_ends_neither_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher, sockets() as make:
        with monkeypatch.context() as broken:
            broken.setattr(publisher, "_send", None)
            broken.setattr(publisher._buffer, "since", None)
            dealer = make(zmq.DEALER)
            assert publisher.replay_endpoint is not None
            dealer.connect(publisher.replay_endpoint)
            publisher.publish(b"lost")
            dealer.send_multipart([b"", number(0)])
            until(lambda: publisher.stats().failed == 2)
        publisher.publish(b"sent")
        until(lambda: publisher.stats().published == 1)
        assert [frames[3] for frames in replay(dealer, 0)] == [b"lost", b"sent", b""]
    assert len(caplog.records) == 2


class TestSnapshots:
    def test_they_are_asked_for_on_the_replay_socket_and_come_in_chunks(self) -> None:
        parts = [b"x" * (3 << 20), b"", b"tail"]
        with ZmqPublisher(ANY, replay_endpoint=ANY, snapshot=lambda: (0, iter(parts))) as publisher:
            publisher.publish(b"first")
            download = downloaded(publisher.replay_endpoint)
            assert [bytes(part) for part in download.parts()] == parts
            assert download.head is not None
            assert (download.head.sequence, download.head.digest) == (0, digest_of(b"first"))
            assert (publisher.stats().snapshots, publisher.stats().snapshot_failures) == (1, 0)

    def test_a_publisher_without_them_says_so_at_once(self) -> None:
        with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher, sockets() as make:
            publisher.publish(b"x")
            dealer = make(zmq.DEALER)
            assert publisher.replay_endpoint is not None
            dealer.connect(publisher.replay_endpoint)
            dealer.send_multipart([b"", SNAPSHOT_MARK])
            assert dealer.recv_multipart() == [b"", b"", END, b""]

    def test_a_long_one_holds_up_neither_live_batches_nor_replays(self) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def slow() -> tuple[int, list[bytes]]:
            begun.set()
            go_on.wait()
            return 0, []

        with ZmqPublisher(ANY, replay_endpoint=ANY, topic="kv", snapshot=slow) as publisher, sockets() as make:
            assert publisher.replay_endpoint is not None
            dealer, sub = make(zmq.DEALER), make(zmq.SUB, subscribe=b"kv")
            dealer.connect(publisher.replay_endpoint)
            sub.connect(publisher.endpoint)
            dealer.send_multipart([b"", SNAPSHOT_MARK])
            assert dealer.recv_multipart()[1] == SNAPSHOT_MARK
            assert begun.wait(20)
            first_live(sub, lambda: publisher.publish(b"live"))
            assert replay(dealer, 0)[-1][2] == END
            go_on.set()

    def test_they_need_a_replay_socket(self) -> None:
        with pytest.raises(ConfigError, match="expected a replay_endpoint"):
            ZmqPublisher(ANY, snapshot=lambda: None)


def downloaded(endpoint: str | None) -> SnapshotDownload:
    assert endpoint is not None
    download = SnapshotDownload(64 << 20)
    with sockets() as make:
        dealer = make(zmq.DEALER)
        dealer.connect(endpoint)

        def step() -> bool:
            dealer.send_multipart([b"", download.request()])
            empty, mark, head, chunk = dealer.recv_multipart()
            assert (empty, mark) == (b"", SNAPSHOT_MARK)
            download.take(head, chunk)
            return download.is_complete

        until(step)
    return download
