"""A `SequenceTracker` without sockets: messages go in, what it does is written down."""

from collections.abc import Sequence
from typing import Any

import msgspec

from kvevents.transport.frames import Message
from kvevents.transport.picture import Restored, Verdict
from kvevents.transport.sequence import SequenceTracker
from kvevents.transport.settings import DeliverySettings
from kvevents.transport.snapshot import SnapshotHead, digest_of, pack_parts
from kvevents.transport.state import Reason, SourceCounters, State, StateMachine

LIVE = (State.LIVE, Reason.COMPLETE)


def batch(sequence: int, life: str = "a") -> Message:
    """Batch number `sequence` of one engine's life."""
    return Message(sequence, f"{life}{sequence}".encode(), b"kv")


class World:
    """A tracker with a clock and a sink that write down what happens."""

    def __init__(self, *, replay: bool = True, snapshot: bool | None = False, **settings: Any) -> None:
        self.now = 100.0
        self.applied: list[str] = []
        self.asked: list[int] = []
        self.asked_snapshots: list[bytes] = []
        self.restored = Restored()
        self.clears = 0
        self.verdicts: dict[str, Verdict] = {}
        self.moves: list[str] = []
        self.count = SourceCounters()
        self.machine = StateMachine(self.count, lambda: self.moves.append(str(self.machine.state)), "connecting")
        self.settings = DeliverySettings(**settings)
        self.tracker = SequenceTracker(
            self,
            self.machine,
            self.count,
            has_replay=replay,
            snapshot=snapshot,
            topic=b"kv",
            settings=self.settings,
            clock=lambda: self.now,
        )

    def apply(self, sequence: int, payload: bytes, /) -> Verdict:
        self.applied.append(payload.decode())
        return self.verdicts.get(payload.decode(), Verdict())

    def apply_run(self, batches: Sequence[tuple[int, bytes]], /) -> tuple[int, Verdict]:
        for taken, (sequence, payload) in enumerate(batches, 1):
            verdict = self.apply(sequence, payload)
            if verdict != Verdict():
                return taken, verdict
        return len(batches), Verdict()

    def clear(self) -> None:
        self.clears += 1
        self.applied.clear()

    def ask(self, start: int, /) -> None:
        self.asked.append(start)

    def ask_snapshot(self, request: bytes, /) -> None:
        self.asked_snapshots.append(request)

    def restore(self, parts: Sequence[bytes | memoryview], sequence: int | None, /) -> Restored:
        self.clear()
        if self.restored.failure is None:
            self.applied += [bytes(part).decode() for part in parts]
        return self.restored

    def snapshot(self, sequence: int | None, *parts: str, life: str = "a", **fields: Any) -> None:
        """The answer to the first request: a snapshot in one chunk, or a head with other fields alone."""
        data = b"".join(pack_parts(part.encode() for part in parts))
        digest = None if sequence is None else digest_of(batch(sequence, life).payload)
        values: dict[str, Any] = {
            "status": "ready",
            "id": 7,
            "sequence": sequence,
            "digest": digest,
            "size": len(data),
            "chunks": 1,
        }
        self.tracker.snapshot(msgspec.msgpack.encode(SnapshotHead(**values | fields)), data)

    def live(self, *sequences: int, life: str = "a") -> None:
        for sequence in sequences:
            self.tracker.live(batch(sequence, life))

    def replies(self, *sequences: int, life: str = "a", end: bool = True) -> None:
        """Answers of one request; when the tracker asks anew, the rest of them is lost with their socket."""
        asked = len(self.asked)
        for sequence in sequences:
            self.tracker.reply(batch(sequence, life))
            if len(self.asked) > asked:
                return
        if end:
            self.tracker.end()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        deadline = self.tracker.deadline()
        if deadline is not None and self.now >= deadline:
            self.tracker.tick()

    def time_out(self) -> None:
        """The request under way gets no answer, or no further one, in time; nor does a probe later."""
        self.wait(self.settings.replay_timeout_s)
        self.wait(0)

    def started(self, *sequences: int) -> "World":
        """Connected and recovered from a buffer with these batches."""
        self.tracker.connected()
        self.replies(*sequences)
        self.asked.clear()
        return self

    @property
    def state(self) -> tuple[State, Reason]:
        return self.machine.state, self.machine.code


def names(*sequences: int, life: str = "a") -> list[str]:
    return [f"{life}{sequence}" for sequence in sequences]
