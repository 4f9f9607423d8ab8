"""Hears everything that an engine publishes, whatever its topic."""

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self, TypeVar

from kvevents.events import BlockStored, KVEventBatch
from kvevents.transport import Source, SourceState, Subscriber
from kvevents.wire import decode_batch

_T = TypeVar("_T")
_LOOK_S = 0.02
_MOST_BATCHES = 20_000
"""Of a busy engine in the seconds that it is listened to."""


class Heard(NamedTuple):
    """A batch.

    Attributes:
        source: on whose socket.
        topic: under which topic; None where the message does not say.
        batch: what was in it.
    """

    source: Source
    topic: bytes | None
    batch: KVEventBatch


class Listener:
    """Follows the sockets of all ranks without a topic, and keeps what is said from now on.

    Args:
        sources: the sockets.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        # Without a replay: what was said before is not asked for, and may be a lot.
        own = [dataclasses.replace(one, topic="", replay_endpoint=None, snapshot=None) for one in sources]
        self._sources = {(one.worker_id, one.dp_rank): one for one in own}
        self._heard: deque[Heard] = deque(maxlen=_MOST_BATCHES)
        self._lock = threading.Lock()
        self._topic: bytes | None = None
        self._subscriber = Subscriber(self._sources.values(), self, on_arrival=self._on_arrival)

    def states(self) -> Sequence[SourceState]:
        """How it stands with each socket."""
        return list(self._subscriber.states().values())

    def heard(self) -> Sequence[Heard]:
        """Everything so far."""
        with self._lock:
            return list(self._heard)

    def store_of(self, tokens: Sequence[int]) -> tuple[Heard, BlockStored] | None:
        """The store that begins with these tokens, if it was heard."""
        for heard in self.heard():
            for event in heard.batch.events:
                if isinstance(event, BlockStored) and event.token_ids:
                    known = list(event.token_ids)[: len(tokens)]
                    if known == list(tokens[: len(known)]) and event.parent_block_hash is None:
                        return heard, event
        return None

    def wait(self, look: Callable[[], _T | None], seconds: float) -> _T | None:
        """Look again and again until something is there; None if it did not come in time."""
        end = time.monotonic() + seconds
        while (found := look()) is None and time.monotonic() < end:
            time.sleep(_LOOK_S)
        return found

    def close(self) -> None:
        """Stop listening."""
        self._subscriber.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def apply(self, worker: str, data: bytes, *, seq: int | None, dp_rank: int | None) -> None:  # noqa: ARG002
        """A batch came; called by the subscriber's thread."""
        batch = decode_batch(data, strict=False)
        with self._lock:
            self._heard.append(Heard(self._sources[worker, dp_rank], self._topic, batch))

    def clear_worker(self, worker: str, dp_rank: int | None = None) -> None:
        """Nothing is kept that a restart would undo."""

    def _on_arrival(self, source: Source, topic: bytes | None, replayed: bool) -> None:  # noqa: ARG002
        self._topic = topic
