"""One source of a log, without a broker: what its messages and its record make of its state."""

import pytest

from kvevents.errors import WireError
from kvevents.events import AllBlocksCleared, KVEventBatch
from kvevents.transport import Reason, SourceState, State
from kvevents.wire import encode_batch
from recording_sink import RecordingSink

pytest.importorskip("nats", reason="nats-py is not installed: the extra `nats`")

from kvevents.transport.jetstream.names import MessageId
from kvevents.transport.jetstream.registry import WorkerRecord
from kvevents.transport.jetstream.source import Circumstances, LogSource

CLEAR = encode_batch(KVEventBatch(0.0, [AllBlocksCleared()], 0))


class World:
    """A source that is read from its log at time 0, with a lease until 10."""

    def __init__(self, sink: RecordingSink | None = None) -> None:
        self.sink = sink or RecordingSink()
        self.told: list[tuple[State, Reason]] = []
        self.source = LogSource("w", 0, self.sink, self._tell, max_batch_bytes=100)
        self.source.lease_until = 10.0

    def take(self, *sequences: int, incarnation: str = "a", payload: bytes = b"x") -> None:
        for sequence in sequences:
            self.source.take(MessageId(incarnation, sequence), payload, replayed=False)

    def record(self, settled: int | None, position: int = 0, incarnation: str = "a") -> None:
        self.source.record = WorkerRecord("w", 0, incarnation, 10.0, settled=settled, position=position)

    def state(self, now: float = 0.0, *, caught_up: bool = True, broken: str | None = None) -> tuple[State, Reason]:
        self.source.show(Circumstances(broken, caught_up, 99, now))
        said = self.source.state()
        return said.state, said.code

    def counts(self) -> SourceState:
        return self.source.state()

    def _tell(self, source: LogSource) -> None:
        said = source.state()
        self.told.append((said.state, said.code))


def test_a_source_is_live_once_its_log_is_read() -> None:
    world = World()
    assert world.source.state().state is State.CONNECTING
    world.take(0, 1)
    assert world.state(caught_up=False) == (State.RECOVERING, Reason.FIRST_REPLAY)
    world.take(2)
    assert world.state() == (State.LIVE, Reason.COMPLETE)
    assert world.sink.sequences() == [0, 1, 2]
    assert world.told == [(State.RECOVERING, Reason.FIRST_REPLAY), (State.LIVE, Reason.COMPLETE)]


def test_each_number_is_applied_once() -> None:
    world = World()
    world.take(0, 1, 1, 0, 2)
    assert world.sink.sequences() == [0, 1, 2]
    assert world.counts().counters.duplicates == 2


@pytest.mark.parametrize(
    ("sequences", "reason", "missing"), [((3,), Reason.LATE_JOIN, 3), ((0, 5), Reason.GAP_UNREPAIRED, 4)]
)
def test_what_is_missing_makes_it_degraded_until_a_clear(
    sequences: tuple[int, ...], reason: Reason, missing: int
) -> None:
    world = World()
    world.take(*sequences)
    assert world.state() == (State.DEGRADED, reason)
    assert world.state(caught_up=False) == (State.DEGRADED, reason)
    assert world.counts().counters.missing == missing
    world.take(sequences[-1] + 1)
    assert world.state() == (State.DEGRADED, reason)
    world.take(sequences[-1] + 2, payload=CLEAR)
    assert world.state() == (State.LIVE, Reason.COMPLETE)


def test_another_incarnation_begins_with_nothing() -> None:
    world = World()
    world.take(0, 5)
    world.take(0, incarnation="b")
    assert world.state() == (State.LIVE, Reason.COMPLETE)
    assert world.sink.sequences() == [0]
    world.take(6, 7, incarnation="a")  # the old one's last words, or a second process under one name
    assert world.sink.sequences() == [0]
    assert (world.counts().counters.restarts, world.counts().counters.late) == (1, 2)


def test_the_record_tells_a_restart_and_last_batches_that_were_dropped() -> None:
    world = World()
    world.take(0, 1)
    world.record(settled=4, position=7)
    world.source.confirm(6)  # not all of it is read yet
    assert world.state() == (State.LIVE, Reason.COMPLETE)
    world.source.confirm(7)
    assert world.state() == (State.DEGRADED, Reason.GAP_UNREPAIRED)
    assert world.counts().counters.missing == 3
    world.take(5)
    assert world.counts().counters.missing == 3
    world.record(settled=None, incarnation="b")
    world.source.confirm(8)
    assert world.state() == (State.LIVE, Reason.COMPLETE)
    assert world.sink.sequences() == []
    world.record(settled=9, incarnation="a")  # the old engine still renews
    world.source.confirm(9)
    assert world.state() == (State.LIVE, Reason.COMPLETE)


def test_a_lease_that_runs_out_is_lost_and_back_when_renewed() -> None:
    world = World()
    world.take(0)
    assert world.state(9.9) == (State.LIVE, Reason.COMPLETE)
    assert world.state(10.0) == (State.LOST, Reason.LEASE_EXPIRED)
    assert [world.source.gone_since] == [10.0]
    world.source.lease_until = 30.0
    assert world.state(20.0) == (State.LIVE, Reason.COMPLETE)
    assert [world.source.gone_since] == [None]
    world.source.has_left, world.source.lease_until = True, 0.0
    assert world.state(21.0) == (State.LOST, Reason.LEFT)
    assert world.state(21.0, broken="cut") == (State.LOST, Reason.CONNECTION_LOST)


def test_what_was_forgotten_is_read_again_from_the_beginning() -> None:
    world = World()
    world.take(0, 1, 2)
    world.source.forget()
    assert world.sink.sequences() == []
    world.record(settled=9)
    world.source.confirm(99)
    assert world.counts().counters.missing == 0
    world.source.reset()
    world.take(0, 1, 2, 3)
    assert world.sink.sequences() == [0, 1, 2, 3]
    assert world.state() == (State.LIVE, Reason.COMPLETE)


def send_parts(world: World, sequence: int, *parts: int, of: int = 3, size: int = 1) -> None:
    for part in parts:
        world.source.take(MessageId("a", sequence, part, of), bytes([65 + part]) * size, replayed=False)


def test_parts_make_a_batch_whatever_came_between() -> None:
    world = World()
    send_parts(world, 0, 0, 1)
    assert world.sink.sequences() == []
    send_parts(world, 0, 0, 1, 2)  # begun anew after a connection broke
    assert world.sink.payloads() == [b"ABC"]
    send_parts(world, 1, 0, 2)
    send_parts(world, 2, 0, 1, 2)
    assert world.sink.sequences() == [0, 2]
    assert world.state() == (State.DEGRADED, Reason.GAP_UNREPAIRED)


def test_a_batch_that_is_too_large_is_given_up() -> None:
    world = World()
    send_parts(world, 0, 0, 1, 2, size=50)
    world.take(1)
    assert world.sink.sequences() == [1]
    assert world.counts().counters.refused >= 1
    assert world.state()[0] is State.DEGRADED


def fail_with(error: Exception) -> RecordingSink:
    def fails(payload: bytes) -> None:
        if payload == b"bad":
            raise error

    return RecordingSink(fails)


@pytest.mark.parametrize(
    ("error", "reason"), [(WireError("broken", 3), Reason.BATCH_REFUSED), (RuntimeError("boom"), Reason.SINK_FAILED)]
)
def test_a_batch_that_the_sink_does_not_take_is_said(
    error: Exception, reason: Reason, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(fail_with(error))
    world.take(0)
    world.take(1, payload=b"bad")
    world.take(2)
    assert world.state() == (State.DEGRADED, reason)
    assert world.sink.sequences() == [0, 2]
    assert ("boom" in caplog.text) == (reason is Reason.SINK_FAILED)
