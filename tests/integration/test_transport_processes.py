"""Publishers that are killed, stopped and started anew: the index holds what they hold, or says that it may not."""

import os
import signal
from collections.abc import Iterator

import pytest

from kvevents.index import PrefixIndex
from kvevents.transport import DeliverySettings, Reason, Source, SourceState, State, Subscriber
from publishing_process import PAGE, PublishingProcess
from zmq_peers import until

pytestmark = pytest.mark.integration
QUICK = DeliverySettings(replay_timeout_s=2.0, idle_probe_s=0.2, settle_s=0.02, heartbeat_s=0.5)


@pytest.fixture
def index() -> Iterator[PrefixIndex]:
    index = PrefixIndex(PAGE)
    yield index
    index.check_integrity()


def source(engine: PublishingProcess, *, replay: bool = True) -> Source:
    return Source("w", engine.endpoint, replay_endpoint=engine.replay_endpoint if replay else None, topic="kv")


def gpu(index: PrefixIndex) -> set[int]:
    return index.holdings("w").get(0, {}).get("GPU", set())


def agree(index: PrefixIndex, engine: PublishingProcess) -> None:
    truth = engine.holdings()
    until(lambda: gpu(index) == truth, "index and engine hold the same")


@pytest.mark.parametrize("batches", [3, 100, 400], ids=["fewer batches", "as many", "more batches"])
def test_an_engine_that_is_killed_and_started_anew_replaces_what_it_held(index: PrefixIndex, batches: int) -> None:
    with PublishingProcess(seed=1) as first, Subscriber([source(first)], index, settings=QUICK) as subscriber:
        first.work(100)
        agree(index, first)
        first.kill()
        until(lambda: subscriber.state("w").state is State.LOST)
        assert gpu(index), "what is left is flagged, not dropped: the engine may come back"
        with PublishingProcess(first.endpoint, first.replay_endpoint, seed=2) as second:
            second.work(batches)
            agree(index, second)
            until(lambda: subscriber.state("w").state is State.LIVE)
            second.work(20)
            agree(index, second)
            assert subscriber.state("w").counters.restarts > 0


@pytest.mark.parametrize(("batches", "replay"), [(1, True), (60, True), (1, False)])
def test_an_engine_that_is_back_at_once_is_found_to_be_another_one(
    index: PrefixIndex, batches: int, replay: bool
) -> None:
    """Killed and back, with batches of its own, before anybody has looked."""
    told: list[SourceState] = []
    with (
        PublishingProcess(seed=1) as first,
        Subscriber([source(first, replay=replay)], index, on_state=lambda *_: told.append(_[2])) as subscriber,
    ):
        until(lambda: subscriber.state("w").state is not State.CONNECTING)
        first.work(30)
        while subscriber.state("w").last_sequence is None:
            first.work(1)
        if replay:
            agree(index, first)
        first.kill()
        with PublishingProcess(first.endpoint, first.replay_endpoint, seed=2) as second:
            second.work(batches)
            until(lambda: State.LOST in {state.state for state in told})
            if not replay:
                until(lambda: subscriber.state("w").state is State.DEGRADED)
                return
            agree(index, second)
            until(lambda: subscriber.state("w").state is State.LIVE)
            assert subscriber.state("w").counters.restarts > 0


def test_an_engine_that_was_started_anew_and_idles_is_known_to_hold_nothing(index: PrefixIndex) -> None:
    with PublishingProcess(seed=1) as first, Subscriber([source(first)], index, settings=QUICK) as subscriber:
        first.work(100)
        agree(index, first)
        first.kill()
        with PublishingProcess(first.endpoint, first.replay_endpoint, seed=2):
            until(lambda: not gpu(index), "the old engine's blocks are gone")
            until(lambda: subscriber.state("w").state is State.LIVE)


def test_an_engine_that_stands_still_is_lost_and_comes_back_as_itself(index: PrefixIndex) -> None:
    with PublishingProcess(seed=1) as engine, Subscriber([source(engine)], index, settings=QUICK) as subscriber:
        engine.work(50)
        agree(index, engine)
        os.kill(engine.process.pid, signal.SIGSTOP)
        until(lambda: subscriber.state("w").state is State.LOST, "three heartbeats are missed")
        os.kill(engine.process.pid, signal.SIGCONT)
        engine.work(50)
        agree(index, engine)
        until(lambda: subscriber.state("w").state is State.LIVE)
        assert subscriber.state("w").counters.restarts == 0


def test_without_replay_a_killed_engine_leaves_doubts_until_a_clear(index: PrefixIndex) -> None:
    with (
        PublishingProcess(seed=1) as first,
        Subscriber([source(first, replay=False)], index, settings=QUICK) as subscriber,
    ):
        until(lambda: subscriber.state("w").code is Reason.FIRST_BATCH_AWAITED)
        first.work(100)
        until(lambda: subscriber.state("w").state is State.DEGRADED)
        first.kill()
        with PublishingProcess(first.endpoint, first.replay_endpoint, seed=2) as second:
            until(lambda: subscriber.state("w").state is State.DEGRADED, "reached again")
            second.work(200)
            assert subscriber.state("w").state is State.DEGRADED
            second.reset()
            second.work(20)
            agree(index, second)
            until(lambda: subscriber.state("w").state is State.LIVE)


def test_a_late_joiner_of_a_short_buffer_knows_a_part_and_says_so(index: PrefixIndex) -> None:
    with PublishingProcess(seed=1, buffer_steps=20) as engine:
        engine.work(300)
        with Subscriber([source(engine)], index, settings=QUICK) as subscriber:
            until(lambda: subscriber.state("w").code is Reason.REPLAY_STARTS_LATE)
            engine.work(20)
            truth = engine.holdings()
            until(lambda: gpu(index), "what the buffer has is applied")
            assert subscriber.state("w").state is State.DEGRADED
            assert gpu(index) != truth
            engine.reset()
            engine.work(20)
            agree(index, engine)
            until(lambda: subscriber.state("w").state is State.LIVE)
