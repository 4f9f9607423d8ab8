"""Laws of the sequencing under every mix of losses, restarts, reconnects and delays."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kvevents.transport.frames import Message
from kvevents.transport.picture import Verdict
from kvevents.transport.sequence import SequenceTracker
from kvevents.transport.settings import DeliverySettings
from kvevents.transport.state import SourceCounters, State, StateMachine


class Engine:
    """One life of a publisher: what it numbered, and what its replay buffer still has."""

    def __init__(self, life: int, buffer_steps: int) -> None:
        self.life = life
        self.buffer_steps = buffer_steps
        self.batches: list[bytes | None] = []  # None: a number used up by a batch that was dropped

    def publish(self) -> Message:
        sequence = len(self.batches)
        payload = f"life {self.life}, batch {sequence}".encode()
        self.batches.append(payload)
        return Message(sequence, payload, b"")

    def buffer(self, start: int) -> list[Message]:
        kept = [Message(n, payload, b"") for n, payload in enumerate(self.batches) if payload is not None]
        return [message for message in kept[-self.buffer_steps :] if message.sequence >= start]

    @property
    def payloads(self) -> list[bytes]:
        return [payload for payload in self.batches if payload is not None]

    @property
    def last_was_dropped(self) -> bool:
        return bool(self.batches) and self.batches[-1] is None


class Network:
    """An engine, a tracker, and two wires between them that lose and delay."""

    def __init__(self, *, replay: bool, buffer_steps: int, hold_batches: int) -> None:
        self.buffer_steps = buffer_steps
        self.engine = Engine(0, buffer_steps)
        self.live_wire: list[Message] = []
        self.reply_wire: list[Message | None] = []
        self.request: int | None = None
        self.connected = False
        self.applied: list[bytes] = []
        self.now = 0.0
        self.asked = 0
        counters = SourceCounters()
        self.machine = StateMachine(counters, lambda: None, "")
        self.tracker = SequenceTracker(
            self,
            self.machine,
            counters,
            has_replay=replay,
            settings=DeliverySettings(hold_batches=hold_batches),
            clock=lambda: self.now,
        )

    # Effects.

    def apply(self, sequence: int, payload: bytes, /) -> Verdict:
        self.applied.append(payload)
        return Verdict()

    def clear(self) -> None:
        self.applied.clear()

    def ask(self, start: int, /) -> None:
        self.asked += 1
        self.request, self.reply_wire = start, []

    # What can happen.

    def publish(self) -> None:
        message = self.engine.publish()
        if self.connected:
            self.live_wire.append(message)

    def publish_nothing(self) -> None:
        self.engine.batches.append(None)

    def deliver(self) -> None:
        if self.live_wire:
            self.tracker.live(self.live_wire.pop(0))

    def deliver_twice(self) -> None:
        if self.live_wire:
            message = self.live_wire.pop(0)
            self.tracker.live(message)
            self.tracker.live(message)

    def lose(self) -> None:
        del self.live_wire[:1]

    def serve(self) -> None:
        if self.request is not None:
            self.reply_wire += [*self.engine.buffer(self.request), None]
            self.request = None

    def lose_reply(self) -> None:
        """A ROUTER drops what its queue has no room for: never the first reply, never the end mark alone."""
        if len(self.reply_wire) > 2:
            del self.reply_wire[-2]

    def reply(self) -> None:
        if self.reply_wire:
            message = self.reply_wire.pop(0)
            if message is None:
                self.tracker.end()
            else:
                self.tracker.reply(message)

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


OPERATIONS = [
    *[Network.publish] * 6,
    *[Network.deliver] * 4,
    *[Network.reply] * 4,
    *[Network.serve] * 3,
    *[Network.wait] * 2,
    Network.publish_nothing,
    Network.deliver_twice,
    Network.lose,
    Network.lose_reply,
    Network.connect,
    Network.disconnect,
    Network.restart,
]


def happens(*without: object) -> st.SearchStrategy[list[int]]:
    kept = [n for n, operation in enumerate(OPERATIONS) if operation not in without]
    return st.lists(st.sampled_from(kept), max_size=120)


def run(network: Network, story: list[int]) -> None:
    network.connect()
    for step in story:
        OPERATIONS[step](network)
        assert network.asked < 1_000, "asks without end"
    network.settle()


def assert_in_order(network: Network) -> None:
    """What is held is of one life, in order, each batch once."""
    position = {payload: n for n, payload in enumerate(network.engine.payloads)}
    places = [position[payload] for payload in network.applied]
    assert places == sorted(set(places))


@given(happens(), st.sampled_from([2, 5, 1_000]), st.sampled_from([1, 3, 1_000]))
@settings(max_examples=250)
def test_live_means_complete_and_what_is_applied_is_in_order(story: list[int], buffer_steps: int, hold: int) -> None:
    network = Network(replay=True, buffer_steps=buffer_steps, hold_batches=hold)
    run(network, story)
    assert_in_order(network)
    assert network.machine.state in {State.LIVE, State.DEGRADED}
    if network.machine.state is State.LIVE:
        assert network.applied == network.engine.payloads
        dropped = [n for n, payload in enumerate(network.engine.batches) if payload is None]
        tail = len(network.engine.batches) - len(dropped)
        assert all(n >= tail for n in dropped), "a batch that never came is missing"


@given(happens(Network.publish_nothing), st.sampled_from([1, 3, 1_000]))
@settings(max_examples=250)
def test_whatever_a_large_replay_buffer_has_is_always_recovered(story: list[int], hold: int) -> None:
    network = Network(replay=True, buffer_steps=1_000, hold_batches=hold)
    run(network, story)
    assert network.applied == network.engine.payloads
    assert network.machine.state is State.LIVE


@given(happens())
@settings(max_examples=250)
def test_without_replay_live_means_complete_once_another_batch_came(story: list[int]) -> None:
    network = Network(replay=False, buffer_steps=0, hold_batches=10)
    run(network, story)
    network.publish()
    network.settle()
    if network.machine.state is State.LIVE:
        assert network.applied == network.engine.payloads
        assert None not in network.engine.batches
