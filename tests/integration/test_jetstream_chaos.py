"""Seeded rounds over a fleet's log: whatever is killed or cut, the picture becomes right and says so."""

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kvevents.errors import TransportError
from kvevents.events import BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport import SourceState, State
from kvevents.wire import encode_batch
from nats_server import NatsServer, running_nats, wait_until

pytest.importorskip("nats", reason="nats-py is not installed: the extra `nats`")

from jetstream_fleet import PAGE, expect_live, settings_for
from kvevents.transport.jetstream import JetStreamPublisher, JetStreamSettings, JetStreamSubscriber

pytestmark = pytest.mark.integration

STEPS = 25
ROUNDS = int(os.environ.get("JETSTREAM_ROUNDS", "4"))


class Worker:
    """Stores and removes prompts of its own; what it should hold is in `truth`."""

    def __init__(self, name: str, settings: JetStreamSettings, draw: random.Random) -> None:
        self.name = name
        self.truth = PrefixIndex(PAGE)
        self._settings = settings
        self._draw = draw
        self._next = 1
        self._held: list[int] = []
        self.publisher = JetStreamPublisher(settings, name)

    def step(self) -> None:
        events: list[KVCacheEvent] = []
        for _ in range(self._draw.randrange(1, 4)):
            if self._held and self._draw.random() < 0.3:
                gone = self._held.pop(self._draw.randrange(len(self._held)))
                events.append(BlockRemoved([gone], medium="GPU"))
            else:
                self._held.append(self._next)
                events.append(
                    BlockStored([self._next], None, [self._next * 7 + i for i in range(PAGE)], PAGE, medium="GPU")
                )
                self._next += 1
        payload = encode_batch(KVEventBatch(0.0, events, 0))
        self.truth.apply(self.name, payload)
        self.publisher.publish(payload)

    def cut(self) -> None:
        """Its connection breaks in the middle of whatever is under way."""
        broker = self.publisher._broker
        if (connection := broker._connection) is not None:
            broker.call_soon(lambda: connection.fail("cut"))

    def restart(self) -> None:
        """The engine dies without a word; the next one begins with nothing."""
        self.publisher._broker.stop()
        self.publisher.close()
        self._held.clear()
        self.truth.clear_worker(self.name)
        self.publisher = JetStreamPublisher(self._settings, self.name)

    def last(self) -> int | None:
        return self.publisher.stats().last_sequence


class Round:
    """A broker, workers and one consumer; `happen` does something to one of them."""

    def __init__(self, seed: int, server: NatsServer) -> None:
        self._draw = random.Random(seed)
        self.degraded: list[SourceState] = []
        self._server = server
        self._settings = settings_for(self._server, lease_s=6.0, retry_max_s=0.3)
        self.workers = [Worker(f"w{number}", self._settings, self._draw) for number in range(3)]
        self._follow()

    def happen(self) -> None:
        for _ in range(self._draw.randrange(1, 30)):
            self._draw.choice(self.workers).step()
        worker = self._draw.choice(self.workers)
        events: list[Callable[[], None]] = [self._kill_broker, worker.cut, worker.restart]
        events += [self._start_consumer_again, self._save, self._cut_consumer, worker.cut, worker.step]
        self._draw.choice(events)()

    def close(self) -> None:
        self.subscriber.close()
        for worker in self.workers:
            worker.publisher.close()

    def _follow(self) -> None:
        self.index = PrefixIndex(PAGE)
        self.subscriber = JetStreamSubscriber(
            self._settings, self.index, snapshots=self.index, on_state=lambda *said: self._watch(said[2])
        )

    def _watch(self, state: SourceState) -> None:
        if state.state is State.DEGRADED:
            self.degraded.append(state)

    def _kill_broker(self) -> None:
        self._server.kill()
        self._server.start()

    def _start_consumer_again(self) -> None:
        self.subscriber.close()
        self._follow()

    def _save(self) -> None:
        self.subscriber.wait_caught_up(20.0)
        with contextlib.suppress(TransportError):  # a connection that was cut a moment ago
            self.subscriber.save_snapshot()

    def _cut_consumer(self) -> None:
        broker = self.subscriber._broker
        if (connection := broker._connection) is not None:
            broker.call_soon(lambda: connection.fail("cut"))


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_after_whatever_happened_the_picture_is_right(seed: int, tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server, contextlib.closing(Round(seed, server)) as world:
        for _ in range(STEPS):
            world.happen()
        for worker in world.workers:
            worker.step()
            worker.publisher.wait_ready(20.0)
        wanted = {(worker.name, 0): worker.last() for worker in world.workers}
        wait_until(
            lambda: {key: state.last_sequence for key, state in world.subscriber.states().items()} == wanted,
            lambda: (wanted, world.subscriber.states(), world.subscriber.broker),
        )
        expect_live(world.subscriber, workers=3)
        for worker in world.workers:
            assert world.index.holdings(worker.name) == worker.truth.holdings(worker.name)
        world.index.check_integrity()
        assert world.degraded == []
