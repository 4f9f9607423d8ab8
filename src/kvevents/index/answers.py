"""What the index says."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import msgspec

from kvevents.events import StorageMedium

TIERS: tuple[str, ...] = tuple(medium.value for medium in StorageMedium)
"""Names of the tiers in every answer, fastest first."""


class WorkerMatch(msgspec.Struct, frozen=True):
    """How much of a prompt one rank of a worker holds, in blocks of the index's size, always from the first block on.

    Attributes:
        worker: the worker's id.
        dp_rank: data-parallel rank; None where the engine does not say.
        total: leading blocks held, each in any tier.
        tiers: leading blocks held in that tier alone, for every tier.
        fastest: of the first `total` blocks, those whose fastest tier is that one; they sum to `total`.
        usable: leading blocks that the engine will reuse: `total`, or less in a hybrid model whose sliding windows or
            state checkpoints are not there. An engine always computes a prompt's last token itself, so of n tokens it
            reports `min(usable, (n - 1) // block_size) * block_size` as cached.
        state: of the source: what `PrefixIndex.set_state` said last (`live` if nothing), `degraded` while its events
            contradict its block size.
    """

    worker: str
    dp_rank: int | None
    total: int
    tiers: dict[str, int]
    fastest: dict[str, int]
    usable: int
    state: str


class Matches(Sequence[WorkerMatch]):
    """Matches of one prompt, best first: most usable blocks, then most of them fastest on the GPU, then by id."""

    __slots__ = ("_rows",)

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> WorkerMatch: ...
    @overload
    def __getitem__(self, index: slice) -> "Matches": ...
    def __getitem__(self, index: int | slice) -> "WorkerMatch | Matches":
        if isinstance(index, slice):
            return Matches(self._rows[index])
        return _match(self._rows[index])

    def __iter__(self) -> Iterator[WorkerMatch]:
        return map(_match, self._rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # a sequence that compares by value, as a list

    def __repr__(self) -> str:
        return f"Matches({list(self)})"


def _match(row: Any) -> WorkerMatch:
    worker, dp_rank, total, tiers, fastest, usable, state = row
    return WorkerMatch(
        worker,
        dp_rank,
        total,
        dict(zip(TIERS, tiers, strict=True)),
        dict(zip(TIERS, fastest, strict=True)),
        usable,
        state,
    )


class SourceStats(msgspec.Struct, frozen=True):
    """Figures of one rank of a worker, in blocks of its engine.

    Attributes:
        worker: the worker's id.
        dp_rank: data-parallel rank; None where the engine does not say.
        state: as matches report it.
        error: what is wrong with it (a contradicted block size), until it is cleared.
        block_size: tokens (pairs, for bigrams) in a block of its engine; None before the first store.
        bigram: whether its blocks are made of pairs.
        tiers: blocks held in each tier, with and without a place.
        blocks: blocks known, with those that are not held but have held blocks below them.
        pending: blocks that wait for their parent.
        parked: held blocks without a place, known by hash only.
        unaligned: those of the parked blocks that came by stores with more (or fewer) tokens than their blocks cover.
        last_seq: sequence of the last batch; None where none was given.
        events: events applied.
        stored: blocks stored.
        removed: blocks (copies) removed.
        cleared: clears.
        removal_misses: removals of blocks that were not held there.
        dropped: pending and parked blocks dropped because they were too many, too large or too old.
        partial: partial pages stored: shorter than the engine's blocks, held by hash, in no match.
        refused: stores refused because they contradict the block size.
        duplicates: batches ignored because their sequence had been applied before.
        skipped: events left out, by code.
    """

    worker: str
    dp_rank: int | None
    state: str
    error: str | None
    block_size: int | None
    bigram: bool
    tiers: dict[str, int]
    blocks: int
    pending: int
    parked: int
    unaligned: int
    last_seq: int | None
    events: int
    stored: int
    removed: int
    cleared: int
    removal_misses: int
    dropped: int
    partial: int
    refused: int
    duplicates: int
    skipped: dict[str, int]


class IndexStats(msgspec.Struct, frozen=True):
    """Figures of the index.

    Attributes:
        blocks: distinct blocks (by content) that anyone holds.
        memory_bytes: memory in use, estimated.
        ignored_batches: batches that came for removed workers.
        workers: ids of all workers.
        sources: each rank of each worker that has sent something.
    """

    blocks: int
    memory_bytes: int
    ignored_batches: int
    workers: list[str]
    sources: list[SourceStats]
