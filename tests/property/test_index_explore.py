"""What is seen in the tree of prompts is the trie of what was stored, however engines name and send it."""

from collections import Counter
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from kvevents.events import BlockRemoved, BlockStored, KVEventBatch
from kvevents.index import PrefixIndex

BLOCK = 2
Path = tuple[int, ...]


class Seen(NamedTuple):
    """A stretch as the trie has it."""

    depth: int
    blocks: int
    below: int
    children: int
    holders: tuple[str, ...]


PROMPTS = st.lists(st.integers(1, 3), min_size=1, max_size=6).map(tuple)
STORES = st.lists(st.tuples(st.sampled_from("abc"), PROMPTS), max_size=12)
REMOVALS = st.lists(st.tuples(st.sampled_from("abc"), PROMPTS), max_size=4)


def name(worker: str, path: Path, *, own_names: bool) -> int:
    """What a worker's engine calls a block."""
    return hash((worker if own_names else "", path)) & (2**62 - 1)


def tell(index: PrefixIndex, worker: str, path: Path, *, own_names: bool) -> None:
    """Store a prompt's blocks."""
    hashes = [name(worker, path[:end], own_names=own_names) for end in range(1, len(path) + 1)]
    tokens = [token for block in path for token in (block, block)]
    index.apply(worker, KVEventBatch(ts=0.0, events=[BlockStored(hashes, None, tokens, BLOCK, medium="GPU")]))


def trie(held: set[tuple[str, Path]]) -> list[Seen]:
    """The stretches that these blocks make, by the definition."""
    known = {path[:end] for _, path in held for end in range(1, len(path) + 1)}
    members = {path: {worker for worker, other in held if other[: len(path)] == path} for path in known}
    below: dict[Path, list[Path]] = {path: [] for path in [(), *known]}
    for path in known:
        below[path[:-1]].append(path)

    def holders(path: Path) -> tuple[str, ...]:
        return tuple(sorted({worker for worker, other in held if other == path}))

    seen = []
    stack = list(below[()])
    while stack:
        first = last = stack.pop()
        while len(below[last]) == 1 and (holders(below[last][0]), members[below[last][0]]) == (
            holders(first),
            members[first],
        ):
            (last,) = below[last]
        stack.extend(below[last])
        size = sum(path[: len(last)] == last and path != last for path in known)
        seen.append(Seen(len(first) - 1, len(last) - len(first) + 1, size, len(below[last]), holders(first)))
    return seen


@given(STORES, REMOVALS, st.booleans())
def test_the_tree_is_the_trie_of_what_is_held(
    stores: list[tuple[str, Path]], removals: list[tuple[str, Path]], own_names: bool
) -> None:
    index = PrefixIndex(BLOCK)
    for worker in "abc":
        index.add_worker(worker, block_size=BLOCK, residency="set")
    held: set[tuple[str, Path]] = set()
    for worker, path in stores:
        tell(index, worker, path, own_names=own_names)
        held |= {(worker, path[:end]) for end in range(1, len(path) + 1)}
    for worker, path in removals:
        event = BlockRemoved([name(worker, path, own_names=own_names)], medium="GPU")
        index.apply(worker, KVEventBatch(ts=0.0, events=[event]))
        held.discard((worker, path))
    trails = [index.trail([token for block in path for token in (block, block)]) for _, path in stores]
    view = index.explore(depth=100, limit=1000, trails=trails)
    assert view is not None
    told = [
        Seen(one.depth, one.blocks, one.below, one.children, tuple(sorted(holder.worker for holder in one.holders)))
        for one in view.stretches
    ]
    expected = trie(held)
    if own_names:  # a hole that one engine knows and another holds may be told apart by who knows it, or not
        assert sum(one.blocks for one in told) == sum(one.blocks for one in expected)
    else:
        assert Counter(told) == Counter(expected)
    assert (view.total, view.blocks) == (len(told), sum(one.blocks for one in told))
    assert view.followed == sum(bool(trail) for trail in trails)
    assert sum(one.hits for one in view.stretches if one.parent is None) == view.followed
    for place, one in enumerate(view.stretches):
        children = [other for other in view.stretches if other.parent == place]
        assert len(children) == one.children
        assert sum(child.blocks + child.below for child in children) == one.below
        assert one.hits >= sum(child.hits for child in children)
        again = index.explore(one.content, depth=1, limit=1)
        assert again is not None
        assert again.stretches[0].blocks == one.blocks
        assert len(again.path) == len(set(again.path))
