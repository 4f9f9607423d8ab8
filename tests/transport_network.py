"""A publisher, a `SequenceTracker`, and wires between them that lose, delay and repeat: for laws over stories."""

from collections.abc import Sequence

import msgspec

from kvevents.transport.frames import Message
from kvevents.transport.picture import Restored, Verdict
from kvevents.transport.sequence import SequenceTracker
from kvevents.transport.settings import DeliverySettings
from kvevents.transport.snapshot import SNAPSHOT_MARK, SnapshotHead, digest_of, pack_parts
from kvevents.transport.state import SourceCounters, State, StateMachine


class Engine:
    """One life of a publisher: what it numbered, and what its replay buffer still has.

    A batch that it dropped has used up its number and is nowhere, but what it told of is so all the same: only a
    snapshot can tell of it.
    """

    def __init__(self, life: int, buffer_steps: int) -> None:
        self.life = life
        self.buffer_steps = buffer_steps
        self.batches: list[bytes] = []
        self.dropped: set[int] = set()

    def publish(self, *, dropped: bool = False) -> Message:
        sequence = len(self.batches)
        payload = f"life {self.life}, batch {sequence}".encode()
        self.batches.append(payload)
        if dropped:
            self.dropped.add(sequence)
        return Message(sequence, payload, b"")

    def buffer(self, start: int) -> list[Message]:
        kept = [Message(n, payload, b"") for n, payload in enumerate(self.batches) if n not in self.dropped]
        return [message for message in kept[-self.buffer_steps :] if message.sequence >= start]

    @property
    def payloads(self) -> list[bytes]:
        return [payload for n, payload in enumerate(self.batches) if n not in self.dropped]

    def snapshot(self) -> tuple[SnapshotHead, bytes]:
        """In one chunk, of now; as fresh as can be."""
        data = b"".join(pack_parts(self.batches))
        last = len(self.batches) - 1
        known = {message.sequence: message.payload for message in self.buffer(0)}
        head = SnapshotHead(
            status="ready",
            id=self.life * 1000 + last + 1,
            sequence=None if last < 0 else last,
            digest=digest_of(known[last]) if last in known else None,
            size=len(data),
            chunks=1,
        )
        return head, data


class Network:
    """Everything that can happen, one step at a time; time passes only in `wait`.

    Args:
        replay: whether there is a replay socket.
        snapshots: whether the publisher offers them; the tracker is not told.
        buffer_steps: batches that the publisher can repeat.
        settings: the tracker's.
    """

    def __init__(
        self, *, replay: bool, buffer_steps: int, snapshots: bool = False, settings: DeliverySettings | None = None
    ) -> None:
        self.buffer_steps = buffer_steps
        self.snapshots = snapshots
        self.engine = Engine(0, buffer_steps)
        self.live_wire: list[Message] = []
        self.reply_wire: list[Message | tuple[SnapshotHead, bytes] | None] = []
        self.request: int | bytes | None = None
        self.connected = False
        self.applied: list[bytes] = []
        self.now = 0.0
        self.asked = 0
        self.count = SourceCounters()
        self.machine = StateMachine(self.count, lambda: None, "")
        self.settings = settings or DeliverySettings()
        self.tracker = SequenceTracker(
            self,
            self.machine,
            self.count,
            has_replay=replay,
            settings=self.settings,
            clock=lambda: self.now,
        )

    # Effects.

    def apply(self, sequence: int, payload: bytes, /) -> Verdict:
        self.applied.append(payload)
        return Verdict()

    def apply_run(self, batches: Sequence[tuple[int, bytes]], /) -> tuple[int, Verdict]:
        for taken, (sequence, payload) in enumerate(batches, 1):
            verdict = self.apply(sequence, payload)
            if verdict != Verdict():
                return taken, verdict
        return len(batches), Verdict()

    def clear(self) -> None:
        self.applied.clear()

    def restore(self, parts: Sequence[bytes | memoryview], sequence: int | None, /) -> Restored:
        self.applied = [bytes(part) for part in parts]
        return Restored()

    def ask(self, start: int, /) -> None:
        self._ask(start)

    def ask_snapshot(self, request: bytes, /) -> None:
        assert request == SNAPSHOT_MARK, "one chunk is all there is"
        self._ask(request)

    def _ask(self, request: int | bytes) -> None:
        self.asked += 1
        self.request, self.reply_wire = request, []

    # What can happen.

    def publish(self) -> None:
        message = self.engine.publish()
        if self.connected:
            self.live_wire.append(message)

    def publish_nothing(self) -> None:
        self.engine.publish(dropped=True)

    def deliver(self) -> None:
        if self.live_wire:
            self.tracker.live(self.live_wire.pop(0))

    def deliver_all(self) -> None:
        batches = [(message.sequence, message.payload) for message in self.live_wire]
        self.live_wire.clear()
        self.tracker.live_all(batches)

    def deliver_twice(self) -> None:
        if self.live_wire:
            message = self.live_wire.pop(0)
            self.tracker.live(message)
            self.tracker.live(message)

    def lose(self) -> None:
        del self.live_wire[:1]

    def serve(self) -> None:
        if isinstance(self.request, bytes) and self.snapshots:
            self.reply_wire.append(self.engine.snapshot())
        elif self.request is not None:
            start = self.request if isinstance(self.request, int) else int.from_bytes(self.request, "big")
            self.reply_wire += [*self.engine.buffer(start), None]
        self.request = None

    def lose_reply(self) -> None:
        """A ROUTER drops what its queue has no room for: never the first reply, never the end mark alone."""
        if len(self.reply_wire) > 2:
            del self.reply_wire[-2]

    def reply(self) -> None:
        if self.reply_wire:
            answer = self.reply_wire.pop(0)
            if answer is None:
                self.tracker.end()
            elif isinstance(answer, Message):
                self.tracker.reply(answer)
            else:
                self.tracker.snapshot(msgspec.msgpack.encode(answer[0]), answer[1])

    def wait(self) -> None:
        self.now += 2.0
        self.tracker.tick()

    def connect(self) -> None:
        if not self.connected:
            self.connected = True
            self.tracker.connected()

    def disconnect(self) -> None:
        if self.connected:
            self.connected = False
            self.tracker.disconnected()
            while self.live_wire:  # what was received before is still read
                self.tracker.live(self.live_wire.pop(0))

    def restart(self) -> None:
        self.disconnect()
        self.request, self.reply_wire = None, []
        self.engine = Engine(self.engine.life + 1, self.buffer_steps)

    def settle(self) -> None:
        """Nothing is lost any more, and there is time."""
        self.connect()
        for _ in range(40):
            for _ in range(200):
                self.serve()
                if not self.live_wire and not self.reply_wire:
                    break
                self.deliver()
                self.reply()
            self.now += 3.0
            self.tracker.tick()
        assert not self.reply_wire

    @property
    def is_right(self) -> bool:
        """Whether what is applied is what the publisher told, whoever was told."""
        return self.applied == self.engine.batches

    @property
    def is_live(self) -> bool:
        return self.machine.state is State.LIVE
