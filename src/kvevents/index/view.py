"""What is seen in the tree of prompts."""

import msgspec


class Holder(msgspec.Struct, frozen=True):
    """Who holds a stretch.

    Attributes:
        worker: the worker's id.
        dp_rank: the rank; None where the engine does not say.
        tiers: the tiers in which it holds it, fastest first.
    """

    worker: str
    dp_rank: int | None
    tiers: list[str]


class Stretch(msgspec.Struct, frozen=True):
    """Blocks one below the other that the same sources hold, up to where prompts part.

    Attributes:
        content: content hash of its first block: where to look down from.
        parent: place of the stretch above it in `View.stretches`; None where that is not told.
        block_size: tokens (pairs, for bigrams) in each of its blocks.
        blocks: its blocks.
        depth: blocks above its first.
        below: blocks below its last, all branches together.
        hits: trails that lead through it or end in it.
        children: stretches right below it, told or not.
        held_by: sources (ranks of workers) that hold it. None for a hole: blocks that were held above others that are.
        holders: some of them, by worker and rank.
    """

    content: int
    parent: int | None
    block_size: int
    blocks: int
    depth: int
    below: int
    hits: int
    children: int
    held_by: int
    holders: list[Holder]


class View(msgspec.Struct, frozen=True):
    """What was seen.

    Attributes:
        stretches: each after the one above it; the first is the one asked for, if one was.
        path: contents of the stretches above it, from the first block on.
        total: stretches in the whole index.
        blocks: blocks in them.
        followed: trails that lead to a block that is still known.
    """

    stretches: list[Stretch]
    path: list[int]
    total: int
    blocks: int
    followed: int
