"""A fleet over a real broker: its settings, its batches, and waiting for its states."""

from typing import Any

from kvevents.events import BlockStored, KVEventBatch
from kvevents.transport import Reason, State
from kvevents.transport.jetstream import JetStreamPublisher, JetStreamSettings, JetStreamSubscriber
from kvevents.wire import encode_batch
from nats_server import NatsServer, wait_until

PAGE = 4


def settings_for(server: NatsServer, **given: Any) -> JetStreamSettings:
    return JetStreamSettings(
        servers=(server.url,), **{"lease_s": 1.5, "max_bytes": 64 << 20, "max_snapshot_bytes": 16 << 20, **given}
    )


def store(number: int, blocks: int = 1, rank: int | None = 0) -> bytes:
    """A batch of new blocks: a prompt of its own."""
    hashes = [number * 1_000 + block for block in range(blocks)]
    tokens = [number * 100_000 + token for token in range(blocks * PAGE)]
    return encode_batch(KVEventBatch(0.0, [BlockStored(hashes, None, tokens, PAGE, medium="GPU")], rank))


def has_published(publisher: JetStreamPublisher, batches: int) -> bool:
    return publisher.stats().published >= batches


def expect_live(subscriber: JetStreamSubscriber, workers: int = 1) -> None:
    assert subscriber.wait_live(20.0, workers=workers), (subscriber.states(), subscriber.broker)


def expect(subscriber: JetStreamSubscriber, state: State, code: Reason, worker: str = "w") -> None:
    def met() -> bool:
        known = {name: source for (name, _), source in subscriber.states().items()}
        return worker in known and (known[worker].state, known[worker].code) == (state, code)

    wait_until(met, lambda: (subscriber.states(), subscriber.broker))
