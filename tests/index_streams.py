"""Random streams for the index: small enough that everything happens, with engines that tell in any order.

A prompt is a path of choices, one for each block. Two prompts with the same beginning have the same blocks there, under
the same engine hashes; an alias stands for another engine (or another hash seed) that names the same blocks otherwise.
"""

import itertools
from typing import Any, NamedTuple

from hypothesis import strategies as st

from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent

SIZES = (1, 2, 3, 4, 6)
MEDIA = (*["GPU"] * 9, None, "CPU", "cpu_pinned", "DISK", "STORAGE", "EXTERNAL", "TAPE")
RANKS = (None, 0, 1)
SPACES: tuple[dict[str, Any], ...] = ({}, {"cache_salt": "x"}, {"lora_name": "m"}, {"lora_id": 3})
GROUPS: tuple[dict[str, Any], ...] = (
    {"group_idx": 1, "kv_cache_spec_kind": "full_attention"},
    {"group_idx": 1},
    {"group_idx": 0, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 4},
    {"group_idx": 2, "kv_cache_spec_kind": "mamba"},
    {"group_idx": 3},
)
DECLARED = {2: ("mamba", None), 3: ("sliding_window", 3)}
IMAGE = 2
"""The choice of a block that an image begins in."""


class Engine(NamedTuple):
    """How a worker's engine works, and how it was registered."""

    size: int
    pairs: bool
    hybrid: bool
    counted: bool
    registered: int | None
    declared: bool


class Path(NamedTuple):
    """A prompt: a choice for each of its blocks, in a namespace."""

    space: int
    choices: tuple[int, ...]

    def tokens(self, size: int, *, pairs: bool) -> list[int]:
        """Its ids; where blocks are made of pairs, each begins alike, and one id more follows for the last pair."""
        ids = [10 * choice + offset for choice in self.choices for offset in range(size)]
        return [0 if index % size == 0 else id_ for index, id_ in enumerate([*ids, 0])] if pairs else ids

    def hashes(self, alias: int) -> list[int]:
        ends = range(1, len(self.choices) + 1)
        return [hash((self.space, self.choices[:end], alias)) % 2**64 for end in ends]

    def partial(self, place: int, length: int) -> int:
        """What a page at that place is called that has so many tokens and no more."""
        return hash((self.space, self.choices[: place + 1], "partial", length)) % 2**64

    def images(self) -> list[list[Any]]:
        return [[["img", index]] if choice == IMAGE else [] for index, choice in enumerate(self.choices)]


class Batch(NamedTuple):
    worker: int
    rank: int | None
    events: list[KVCacheEvent]


class Stream(NamedTuple):
    """Two workers, what they send, and the prompts to ask for in between."""

    block_size: int
    engines: tuple[Engine, Engine]
    batches: list[Batch]
    paths: list[Path]
    images: bool


def paths() -> st.SearchStrategy[Path]:
    choices = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)
    return st.builds(Path, st.integers(0, len(SPACES) - 1), choices)


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    size = draw(st.sampled_from(SIZES))
    return Engine(
        size,
        pairs=draw(st.booleans()),
        hybrid=draw(st.booleans()),
        counted=draw(st.booleans()),
        registered=draw(st.sampled_from([*[None, size] * 6, 5])),
        declared=draw(st.booleans()),
    )


@st.composite
def stores(draw: st.DrawFn, path: Path, engine: Engine, *, images: bool) -> BlockStored:
    size = draw(st.sampled_from([engine.size] * 40 + [5]))
    start = draw(st.just(0) | st.integers(0, len(path.choices) - 1))
    end = draw(st.integers(start + 1, len(path.choices)))
    hashes = path.hashes(draw(st.sampled_from([0, 0, 0, 1])))
    ids: list[Any] = path.tokens(size, pairs=engine.pairs)[start * size : end * size + engine.pairs]
    if engine.pairs:
        ids = list(itertools.pairwise(ids))
    blocks = hashes[start:end]
    parent = hashes[start - 1] if start else None
    form = draw(st.sampled_from(["told"] * 6 + ["bare", "masked", "astray", "partial"]))
    if form == "bare":
        ids, parent, size = [], None, 0
    elif form == "masked":
        blocks = blocks[draw(st.integers(0, len(blocks) - 1)) :]
    elif form == "astray":
        parent = draw(st.sampled_from([*hashes, 0, path.partial(start, 1)]))
    elif form == "partial" and size > 1:
        size = draw(st.integers(1, size - 1))
        end, ids, blocks = start + 1, ids[:size], [path.partial(start, size)]
    fields = dict(SPACES[path.space])
    if images or draw(st.booleans()):
        salt = fields.pop("cache_salt", None)
        adapter = [fields["lora_name"]] if "lora_name" in fields else []
        pictures = path.images()[start:end] if images else [[] for _ in range(start, end)]
        entries = [[*adapter, *picture] for picture in pictures]
        if salt and parent is None:
            entries[0].append(salt)
        fields["extra_keys"] = [entry or None for entry in entries]
    if engine.hybrid:
        fields |= draw(st.sampled_from(GROUPS))
    return BlockStored([*blocks], parent, ids, size, medium=draw(st.sampled_from(MEDIA)), **fields)


@st.composite
def removals(draw: st.DrawFn, path: Path, engine: Engine) -> BlockRemoved:
    hashes = path.hashes(draw(st.sampled_from([0, 0, 0, 1])))
    hashes.append(path.partial(len(hashes) - 1, 1))
    blocks = draw(st.lists(st.sampled_from(hashes), min_size=1, max_size=3))
    group = draw(st.sampled_from(GROUPS))["group_idx"] if engine.hybrid else None
    return BlockRemoved([*blocks], draw(st.sampled_from(MEDIA)), group_idx=group)


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    block_size = draw(st.sampled_from(SIZES))
    first = draw(engines())
    both = (first, draw(st.just(first) | engines()))
    images = all(engine.size == block_size for engine in both)
    pool = draw(st.lists(paths(), min_size=1, max_size=4))
    ranks = draw(st.sampled_from([(None,), (0,), RANKS]))
    batches = []
    for _ in range(draw(st.integers(1, 12))):
        worker = draw(st.integers(0, 1))
        engine = both[worker]
        events: list[KVCacheEvent] = []
        for _ in range(draw(st.integers(1, 4))):
            path = draw(st.sampled_from(pool))
            kind = draw(st.sampled_from(["store"] * 6 + ["remove"] * 4 + ["clear"]))
            if kind == "store":
                events.append(draw(stores(path, engine, images=images)))
            elif kind == "remove":
                events.append(draw(removals(path, engine)))
            elif draw(st.integers(0, 2)) == 0:
                events.append(AllBlocksCleared())
        batches.append(Batch(worker, draw(st.sampled_from(ranks)), events))
    return Stream(block_size, both, batches, pool, images=images)
