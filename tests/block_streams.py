"""Streams of batches in which blocks come and go again and again, for whoever makes fewer events of them."""

import itertools
from typing import Any, NamedTuple

from hypothesis import strategies as st

from consumers import coherent
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent

Batches = list[list[KVCacheEvent]]


def forms(block: int) -> list[Any]:
    """The hash of a block in every form; some are negative as signed integers."""
    value = block if block % 2 else (1 << 64) - block
    return [value if value < 1 << 63 else value - (1 << 64), value, value.to_bytes(32, "big")]


class Step(NamedTuple):
    """One event about blocks of a forest in which the parent of a block is a smaller one, or none."""

    kind: str
    blocks: list[int]
    """Of a store: the first block, then which child each next one is. Of a removal: the blocks."""
    medium: str | None
    group_idx: int | None
    form: int
    session_id: str | None
    has_extra_keys: bool

    def event(self, parents: list[int]) -> KVCacheEvent:
        match self.kind:
            case "clear":
                return AllBlocksCleared()
            case "remove":
                removed = [forms(1 + block % len(parents))[self.form] for block in self.blocks]
                return BlockRemoved(removed, self.medium, self.group_idx)
        path = [1 + self.blocks[0] % len(parents)]
        for choice in self.blocks[1:]:
            if children := [child for child in range(1, len(parents) + 1) if above(parents, child) == path[-1]]:
                path.append(children[choice % len(children)])
        parent = above(parents, path[0])
        return BlockStored(
            [forms(block)[self.form] for block in path],
            forms(parent)[self.form] if parent else None,
            {"store": [token for block in path for token in (block, 9)], "mask": [7] * (2 * len(path) + 2)}.get(
                self.kind, []
            ),
            0 if self.kind == "store without tokens" else 2,
            medium=self.medium,
            group_idx=self.group_idx,
            session_id=self.session_id,
            extra_keys=[["image", block] for block in path] if self.has_extra_keys else None,
        )


def above(parents: list[int], block: int) -> int:
    """The parent of a block; 0 where there is none."""
    return parents[block - 1] % block


STEPS = st.builds(
    Step,
    st.sampled_from(["store"] * 8 + ["remove"] * 8 + ["mask", "store without tokens", "clear"]),
    st.lists(st.integers(0, 7), min_size=1, max_size=3),
    st.sampled_from(["GPU"] * 6 + ["CPU_PINNED", "CPU_PINNED", "cpu", None, "TAPE"]),
    st.sampled_from([None] * 4 + [0, 1]),
    st.sampled_from([0] * 8 + [1, 2]),
    st.sampled_from([None] * 4 + ["s"]),
    st.sampled_from([False] * 4 + [True]),
)


def batches() -> st.SearchStrategy[Batches]:
    """Batches of stores of a forest's paths, again and again, and of removals of what is there or not."""

    def cut(parents: list[int], batches: list[list[Step]]) -> Batches:
        kept = iter(coherent(step.event(parents) for steps in batches for step in steps))
        return [list(itertools.islice(kept, len(steps))) for steps in batches]

    parents = st.lists(st.integers(0, 8), min_size=2, max_size=8)
    return st.builds(cut, parents, st.lists(st.lists(STEPS, max_size=12), min_size=1, max_size=4))
