"""Two sides block by block."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec

MOST_BRANCHES = 20


class RankBlocks(msgspec.Struct, frozen=True):
    """What one side says of one rank of a worker.

    Attributes:
        sequence: the number of the last batch that is in it; None where nobody says.
        tiers: blocks by tier, as signed integers.
        parents: the block above each, None for the first of a prompt; empty where only names are known.
    """

    sequence: int | None
    tiers: Mapping[str, AbstractSet[int]]
    parents: Mapping[int, int | None]


class TierDiff(msgspec.Struct, frozen=True):
    """One tier of one rank, in blocks.

    Attributes:
        tier: its name.
        both: held on both sides.
        stale: in the index alone: the router counts on them, and the engine computes them.
        missing: in the engine alone: the router does not know of them.
    """

    tier: str
    both: int
    stale: int
    missing: int


class Branch(msgspec.Struct, frozen=True):
    """Blocks that differ and hang together below one block.

    Attributes:
        tier: the tier.
        side: `stale` or `missing`.
        first: the uppermost block that differs, as 16 hex digits.
        root: the first block of its prompts; None where what is above is not known.
        depth: blocks above it; None likewise.
        blocks: how many differ from there on.
    """

    tier: str
    side: Literal["stale", "missing"]
    first: str
    root: str | None
    depth: int | None
    blocks: int


class RankDiff(msgspec.Struct, frozen=True):
    """One rank of one worker.

    Attributes:
        worker: the worker.
        dp_rank: the rank.
        index_sequence: the last batch in the index.
        engine_sequence: the last batch that the engine's side knows.
        is_same_moment: whether these are known to be the same; else some of the differences may be on their way.
        tiers: by tier.
        branches: the largest ones that differ.
    """

    worker: str
    dp_rank: int
    index_sequence: int | None
    engine_sequence: int | None
    is_same_moment: bool
    tiers: Sequence[TierDiff]
    branches: Sequence[Branch]

    @property
    def differing_blocks(self) -> int:
        """Blocks on one side alone, over all tiers."""
        return sum(tier.stale + tier.missing for tier in self.tiers)


class DiffReport(msgspec.Struct, frozen=True):
    """Everything that was compared.

    Attributes:
        ranks: one for each worker and rank of the engine's side.
        unknown_workers: workers of the engine's side that the index does not know.
    """

    ranks: Sequence[RankDiff]
    unknown_workers: Sequence[str]

    @property
    def is_equal(self) -> bool:
        """Whether no block is on one side alone."""
        return not self.unknown_workers and not any(rank.differing_blocks for rank in self.ranks)


Blocks = Mapping[tuple[str, int], RankBlocks]


def compare(index: Blocks, engine: Blocks) -> DiffReport:
    """Hold the engine's workers and ranks against the index; workers that only the index has are left out."""
    known = {worker for worker, _ in index}
    unknown = sorted({worker for worker, _ in engine} - known)
    nothing = RankBlocks(None, {}, {})
    ranks = [
        _rank(worker, rank, index.get((worker, rank), nothing), engine.get((worker, rank), nothing))
        for worker, rank in sorted({*engine, *(key for key in index if key[0] in {name for name, _ in engine})})
        if worker in known
    ]
    return DiffReport(ranks, unknown)


def _rank(worker: str, rank: int, index: RankBlocks, engine: RankBlocks) -> RankDiff:
    parents = {**engine.parents, **index.parents}
    tiers: list[TierDiff] = []
    branches: list[Branch] = []
    for tier in dict.fromkeys((*index.tiers, *engine.tiers)):
        believed, held = index.tiers.get(tier, frozenset()), engine.tiers.get(tier, frozenset())
        stale, missing = believed - held, held - believed
        tiers.append(TierDiff(tier, len(believed & held), len(stale), len(missing)))
        branches += _branches(tier, "stale", stale, parents)
        branches += _branches(tier, "missing", missing, parents)
    branches.sort(key=lambda branch: -branch.blocks)
    return RankDiff(
        worker=worker,
        dp_rank=rank,
        index_sequence=index.sequence,
        engine_sequence=engine.sequence,
        is_same_moment=index.sequence == engine.sequence,
        tiers=tiers,
        branches=branches[:MOST_BRANCHES],
    )


def _branches(
    tier: str, side: Literal["stale", "missing"], blocks: AbstractSet[int], parents: Mapping[int, int | None]
) -> Iterator[Branch]:
    for first, count in Counter(_uppermost(blocks, parents)).most_common(MOST_BRANCHES):
        above = list(_above(first, parents))
        is_known = first in parents and (not above or parents.get(above[-1], 0) is None)
        root = (above or [first])[-1] if is_known else None
        yield Branch(
            tier=tier,
            side=side,
            first=_hex(first),
            root=None if root is None else _hex(root),
            depth=len(above) if is_known else None,
            blocks=count,
        )


def _uppermost(blocks: AbstractSet[int], parents: Mapping[int, int | None]) -> Iterable[int]:
    """For each block, the uppermost that can be reached from it over blocks of the set."""
    found: dict[int, int] = {}
    for block in blocks:
        path = {block: None}
        top = block
        while (parent := parents.get(top)) is not None and parent in blocks and parent not in path:
            top = found.get(parent, parent)
            path[parent] = None
            if parent in found:
                break
        found.update(dict.fromkeys(path, top))
    return found.values()


def _above(block: int, parents: Mapping[int, int | None]) -> Iterator[int]:
    """The blocks above one, nearest first, as far as they are known."""
    seen = {block}
    while (parent := parents.get(block)) is not None and parent not in seen:
        yield parent
        seen.add(parent)
        block = parent


def _hex(block: int) -> str:
    return f"{block % 2**64:016x}"
