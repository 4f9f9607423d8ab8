"""Engines, followed as any consumer does."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from kvevents.errors import WireError
from kvevents.events import KVEventBatch
from kvevents.index import ApplyReport, GroupSpec, PrefixIndex, WorkerHandle
from kvevents.top.picture import Picture, Row, state_news
from kvevents.transport import Reason, Source, SourceCounters, SourceState, State, Subscriber
from kvevents.transport.source import Residency
from kvevents.wire import decode_batch

Describe: TypeAlias = Callable[[float, str, int | None, int | None, KVEventBatch], Iterable[str]]
"""Lines for a batch: when it came (unix seconds), worker, rank, sequence, the batch."""

_ANY_BLOCK_SIZE = 16
"""Of the answers to matches, which nobody asks for here: blocks are counted in each engine's own size."""

_RECENT = 50
"""Batches between two looks that are shown; of more only the last."""


class EngineFeed:
    """Follows engines into an index of its own.

    Args:
        sources: where their events are.
        describe: makes lines of batches.
    """

    def __init__(self, sources: Sequence[Source], describe: Describe) -> None:
        self._describe = describe
        self._sink = _Sink()
        self._known: dict[tuple[str, int], Row] = {}
        workers = sorted({source.worker_id for source in sources})
        self.name = workers[0] if len(workers) == 1 else f"{len(workers)} engines"
        self._subscriber = Subscriber(sources, self._sink)

    def look(self) -> Picture:
        """What the engines have told so far."""
        rows = self._rows()
        lines = [line for batch in self._sink.take() for line in self._lines(*batch)]
        return Picture(time.monotonic(), rows, [*state_news(rows, self._known), *lines])

    def close(self) -> None:
        """Stop following."""
        self._subscriber.close()

    def _lines(self, came: float, worker: str, rank: int | None, seq: int | None, data: bytes) -> Iterable[str]:
        try:
            batch = decode_batch(data, strict=False)
        except WireError as error:
            return [f"{worker} sent what is no batch: {error}"]
        return self._describe(came, worker, rank if batch.attn_dp_rank is None else batch.attn_dp_rank, seq, batch)

    def _rows(self) -> list[Row]:
        held = {(source.worker, source.dp_rank or 0): source for source in self._sink.index.stats().sources}
        states = self._subscriber.states()
        keys = set(held) | {(worker, rank or 0) for worker, rank in states}
        rows = []
        for worker, rank in sorted(keys):
            state = states.get((worker, rank)) or states.get((worker, None)) or _UNKNOWN
            figures = held.get((worker, rank))
            rows.append(
                Row(
                    worker=worker,
                    dp_rank=rank,
                    state=str(state.state),
                    reason=state.reason,
                    tiers={} if figures is None else figures.tiers,
                    events=0 if figures is None else figures.events,
                    blocks=0 if figures is None else figures.stored + figures.removed,
                    gaps=state.counters.gaps,
                    missing=state.counters.missing,
                    last_sequence=state.last_sequence,
                )
            )
        return rows


class _Sink:
    """An index, and the batches that came last."""

    def __init__(self) -> None:
        self.index = PrefixIndex(_ANY_BLOCK_SIZE)
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, str, int | None, int | None, bytes]] = deque(maxlen=_RECENT)

    def apply(self, worker: str, data: bytes, *, seq: int | None, dp_rank: int | None) -> ApplyReport:
        with self._lock:
            self._recent.append((time.time(), worker, dp_rank, seq, data))
        return self.index.apply(worker, data, seq=seq, dp_rank=dp_rank)

    def clear_worker(self, worker: str, /, dp_rank: int | None = None) -> None:
        self.index.clear_worker(worker, dp_rank)

    def add_worker(
        self, worker: str, *, block_size: int | None, residency: Residency, groups: Mapping[int, GroupSpec] | None
    ) -> WorkerHandle:
        return self.index.add_worker(worker, block_size=block_size, residency=residency, groups=groups)

    def set_state(self, worker: str, dp_rank: int | None, state: str) -> bool:
        return self.index.set_state(worker, dp_rank, state)

    def restore_worker(
        self, worker: str, data: bytes | memoryview, *, seq: int | None = None, dp_rank: int | None = None
    ) -> ApplyReport:
        return self.index.restore_worker(worker, data, seq=seq, dp_rank=dp_rank)

    def take(self) -> list[tuple[float, str, int | None, int | None, bytes]]:
        with self._lock:
            taken = list(self._recent)
            self._recent.clear()
        return taken


_UNKNOWN = SourceState(State.CONNECTING, "", 0.0, SourceCounters(), Reason.NOT_REACHED)
