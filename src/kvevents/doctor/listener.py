"""Hears everything that an engine publishes, whatever its topic."""

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Self, TypeVar

from kvevents.errors import WireError
from kvevents.events import BlockStored, KVEventBatch
from kvevents.transport import Source, SourceState, Subscriber
from kvevents.wire import decode_batch

_T = TypeVar("_T")
_LOOK_S = 0.02
_ENOUGH_TOKENS = 16
"""Of a prompt, in a store that is to be its: fewer come by chance where a block is a token."""

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


class _Piece(NamedTuple):
    """Stores of which each goes on where the one before it ends: one of several blocks, or one for each block."""

    first: BlockStored
    tokens: list[int]


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
        self._count = 0
        self._unread: WireError | None = None
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

    def wait_for_store(self, tokens: Sequence[int], seconds: float) -> tuple[Heard, BlockStored] | None:
        """The store of a prompt's blocks: of the first ones, or of the later ones where an engine had those already.

        Args:
            tokens: the prompt.
            seconds: how long to wait for it.

        Returns:
            In which batch it came and its first event; None if it did not come in time.
        """
        seen = 0

        def look() -> tuple[Heard, BlockStored] | None:
            nonlocal seen
            with self._lock:
                heard = list(self._heard)
                new, seen = self._count - seen, self._count
            for one in heard[max(0, len(heard) - new) :]:
                for piece in _pieces(one.batch):
                    if _is_of(piece, tokens):
                        return one, piece.first
            return None

        return self.wait(look, seconds)

    @property
    def unread(self) -> WireError | None:
        """Why the last batch that could not be read could not; None where there was none."""
        return self._unread

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
        try:
            batch = decode_batch(data, strict=False)
        except WireError as error:
            self._unread = error
            raise
        with self._lock:
            self._count += 1
            self._heard.append(Heard(self._sources[worker, dp_rank], self._topic, batch))

    def clear_worker(self, worker: str, dp_rank: int | None = None) -> None:
        """Nothing is kept that a restart would undo."""

    def _on_arrival(self, source: Source, topic: bytes | None, replayed: bool) -> None:  # noqa: ARG002
        self._topic = topic


def _pieces(batch: KVEventBatch) -> Iterator[_Piece]:
    piece: _Piece | None = None
    last = None
    for event in batch.events:
        if not (isinstance(event, BlockStored) and event.block_hashes and event.token_ids):
            continue
        tokens = [token for token in event.token_ids if isinstance(token, int)]
        if piece is not None and last is not None and event.parent_block_hash == last:
            piece.tokens.extend(tokens)
        else:
            if piece is not None:
                yield piece
            piece = _Piece(event, tokens)
        last = event.block_hashes[-1]
    if piece is not None:
        yield piece


def _is_of(piece: _Piece, tokens: Sequence[int]) -> bool:
    """Whether a piece has a prompt's first blocks, or what follows them to its end."""
    size = max(1, piece.first.block_size)
    whole = len(tokens) // size * size
    is_first = piece.first.parent_block_hash is None
    for start in (0,) if is_first else range(size, whole, size):
        ours = tokens[start : start + len(piece.tokens)]
        is_enough = len(ours) >= min(whole, max(size, _ENOUGH_TOKENS)) and (is_first or start + len(ours) >= whole)
        if is_enough and list(ours) == piece.tokens[: len(ours)]:
            return True
    return False
