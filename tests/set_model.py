"""The index's oracle: the same answers from plain sets and tuples, as slowly as they are plain.

A block's content is the tuple of everything above and in it: the namespace, then the tokens and extra keys of each
block from the first on. Nothing is hashed, nothing is counted ahead, nothing is bounded.
"""

from collections import Counter
from typing import Any, NamedTuple

from kvevents.events import BlockRemoved, BlockStored, KVCacheEvent

TIERS = ("GPU", "CPU_PINNED", "DISK", "EXTERNAL")
MEDIA = {"GPU": 0, "CPU": 1, "CPU_PINNED": 1, "DISK": 2, "FS": 2, "STORAGE": 2, "OBJ": 3, "EXTERNAL": 3}
UNKNOWN = -1

Content = tuple[Any, ...]
Slot = tuple[int, int]
"""Tier and group."""


def key(block: int | bytes) -> int:
    """A hash in any of its forms as a signed integer."""
    if isinstance(block, bytes):
        return int.from_bytes(block[-8:], "big", signed=True)
    return block - 2**64 if block >= 2**63 else block


def tier_of(medium: str | None, locality: str | None) -> int | None:
    """A tier, `UNKNOWN`, or None where the event names none."""
    if locality is not None and locality.upper() == "REMOTE":
        return TIERS.index("EXTERNAL")
    return None if medium is None else MEDIA.get(medium.upper(), UNKNOWN)


class Held:
    """Where each block of one source is held: copies on the GPU are counted, every other tier is a set."""

    def __init__(self, *, counted: bool = True) -> None:
        self.counted = counted
        self.copies: dict[int, Counter[Slot]] = {}

    def add(self, block: int, tier: int, group: int) -> None:
        copies = self.copies.setdefault(block, Counter())
        copies[tier, group] = copies[tier, group] + 1 if self.counted and tier == 0 else 1

    def take(self, block: int, tier: int | None, group: int) -> bool:
        """Whether anything was held there."""
        copies = self.copies.get(block, Counter())
        if tier == UNKNOWN:
            gone = [(slot, count) for slot, count in copies.items()]
        elif tier is None:
            gone = [(slot, 1 if slot[0] == 0 else count) for slot, count in copies.items() if slot[1] == group]
        else:
            gone = [((tier, group), 1)] if copies[tier, group] else []
        for slot, count in gone:
            copies[slot] -= count
        self.copies[block] = +copies
        if not self.copies[block]:
            del self.copies[block]
        return bool(gone)

    def blocks(self, tier: int, groups: set[int]) -> set[int]:
        return {block for block, copies in self.copies.items() if any((tier, group) in copies for group in groups)}

    def apply(self, event: KVCacheEvent) -> int:
        """One event of an engine without groups; how many of its removals missed."""
        if isinstance(event, BlockStored):
            for block in event.block_hashes:
                self.add(key(block), tier_of(event.medium, event.locality) or 0, 0)
            return 0
        if isinstance(event, BlockRemoved):
            tier = tier_of(event.medium, event.locality)
            return sum(not self.take(key(block), tier, 0) for block in event.block_hashes)
        self.copies.clear()
        return 0


class Link(NamedTuple):
    """What a block was computed from: below `parent`, or first in `namespace`."""

    parent: int | None
    part: Any
    namespace: Any


class Source:
    """One rank of one worker, and what has happened to it since it was added."""

    def __init__(self, *, block_size: int | None, counted: bool, kinds: dict[int, tuple[str, int | None]]) -> None:
        self.registered = block_size
        self.declared = kinds
        self.held = Held(counted=counted)
        self.counts: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.last_seq: int | None = None
        self.clear()

    def clear(self) -> None:
        self.held.copies.clear()
        self.links: dict[int, Link] = {}
        self.kinds: dict[int, tuple[str, int | None]] = dict(self.declared)
        self.geometry: tuple[int, bool] | None = None
        self.tried: list[int] = []
        self.partial: set[int] = set()
        self.error = False

    def kind(self, group: int) -> str:
        return self.kinds.get(group, ("full_attention" if group == 0 else "unknown", None))[0]

    def full_groups(self) -> set[int]:
        seen = {group for copies in self.held.copies.values() for _, group in copies}
        return {group for group in seen if self.kind(group) == "full_attention"}

    def content(self, block: int) -> Content | None:
        """Everything above and in a block; None where its place is not known."""
        parts: list[Any] = []
        seen = set()
        at: int | None = block
        while at is not None:
            link = self.links.get(at)
            if link is None or at in seen:
                return None
            seen.add(at)
            parts.append(link.part)
            at = link.parent
            if at is None:
                parts.append(link.namespace)
        return tuple(reversed(parts))

    def store(self, event: BlockStored) -> None:
        tier = tier_of(event.medium, event.locality)
        if tier == UNKNOWN:
            return
        tier, group = tier or 0, event.group_idx or 0
        if event.kv_cache_spec_kind is not None:
            self.kinds[group] = (event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window)
        full = self.kind(group) == "full_attention"
        size = event.block_size
        pairs = bool(event.token_ids) and not isinstance(event.token_ids[0], int)
        blocks = [key(block) for block in event.block_hashes]
        aligned = bool(event.token_ids) and len(event.token_ids) == len(blocks) * size
        cut = self.judge(event, blocks, (size, pairs), aligned=aligned) if event.token_ids else "whole"
        if full and cut == "contradiction":
            self.error = True
            self.counts["refused"] += 1
            return
        if full and cut == "larger":
            self.partial |= self.held.copies.keys() & set(self.tried)
            self.tried, self.geometry, self.links = [], None, {}
        if cut == "partial":
            self.counts["partial"] += 1
            self.partial |= {block for block in blocks if block not in self.links}
        elif aligned and (full or self.geometry == (size, pairs)):
            self.learn(event, blocks, (size, pairs))
        if cut != "partial" and aligned and self.geometry == (size, pairs):
            self.partial -= set(blocks)
            self.place(event, blocks, on_gpu=full and tier == 0)
        for block in blocks:
            self.held.add(block, tier, group)
        self.counts.update(events=1, stored=len(blocks))
        self.forget()

    def judge(self, event: BlockStored, blocks: list[int], got: tuple[int, bool], *, aligned: bool) -> str:
        """How a store is cut, beside what is known: whole, partial (a page that is not full), larger, or wrong."""
        if self.geometry is None and self.registered is None:
            return "whole"
        known = self.geometry or (self.registered or 0, got[1])
        parent = None if event.parent_block_hash is None else key(event.parent_block_hash)
        if parent in self.partial:
            return "contradiction"
        if got == known:
            return "whole"
        if aligned and got[1] == known[1]:
            if got[0] > known[0] and self.tried and parent not in self.tried:
                return "larger"
            divides = self.geometry is None and got[0] > 1 and known[0] % got[0] == 0
            if got[0] < known[0] and len(blocks) == 1 and not self.is_parent(blocks[0]) and not divides:
                return "partial"
        return "contradiction"

    def learn(self, event: BlockStored, blocks: list[int], got: tuple[int, bool]) -> None:
        """Lone blocks do not tell for sure how large blocks are."""
        first, self.geometry = self.geometry is None, got
        if not self.tried and not (first and self.registered is None):
            return
        parent = None if event.parent_block_hash is None else key(event.parent_block_hash)
        if len(blocks) > 1 or parent in self.tried or self.is_parent(blocks[0]):
            self.tried = []
        elif blocks[0] not in self.tried:
            self.tried.append(blocks[0])

    def is_parent(self, block: int) -> bool:
        """Whether blocks wait for it, whose place is not known either."""
        return any(link.parent == block for link in self.links.values()) and self.content(block) is None

    def place(self, event: BlockStored, blocks: list[int], *, on_gpu: bool) -> None:
        if on_gpu:
            # What the GPU says of a block goes before what waits.
            for block in [block for block in blocks if self.content(block) is None]:
                self.links.pop(block, None)
        parent = None if event.parent_block_hash is None else key(event.parent_block_hash)
        for block, part in zip(blocks, parts(event), strict=True):
            link = Link(parent, part, namespace(event) if parent is None else None)
            may_begin = parent is not None or on_gpu
            known = self.content(block) is not None
            binds = parent is None or self.content(parent) is not None
            if not known and may_begin and parent != block and (binds or block not in self.links):
                self.links[block] = link
            parent = block

    def remove(self, event: BlockRemoved) -> None:
        tier = tier_of(event.medium, event.locality)
        misses = sum(not self.held.take(key(block), tier, event.group_idx or 0) for block in event.block_hashes)
        self.counts.update(events=1, removed=len(event.block_hashes) - misses, removal_misses=misses)
        self.forget()

    def forget(self) -> None:
        """Links stay with what is held, and with what held blocks hang on."""
        while True:
            parents = {link.parent for link in self.links.values()}
            self.partial &= {block for block in self.partial if block in self.held.copies or block in parents}
            idle = [block for block in self.links if block not in self.held.copies and block not in parents]
            if not idle:
                return
            for block in idle:
                del self.links[block]

    def waiting(self) -> int:
        """Held blocks without a place, and blocks that wait for one."""
        known = (self.held.copies.keys() | self.links.keys()) - self.partial
        return sum(self.content(block) is None for block in known)

    def apply(self, event: KVCacheEvent) -> None:
        if isinstance(event, BlockStored):
            self.store(event)
        elif isinstance(event, BlockRemoved):
            self.remove(event)
        else:
            self.clear()
            self.counts.update(events=1, cleared=1)


def namespace(event: BlockStored) -> Any:
    salt = event.cache_salt
    if not salt and event.extra_keys and event.extra_keys[0]:
        texts = [item for item in event.extra_keys[0] if isinstance(item, str) and item != event.lora_name]
        salt = texts[-1] if texts else None
    return event.lora_name or event.lora_id, salt or None


def parts(event: BlockStored) -> list[Any]:
    """The tokens and extra keys of each block of an aligned store."""
    return [
        (tokens, extra(event, index)) for index, tokens in enumerate(cut(sequence(event.token_ids), *geometry(event)))
    ]


def geometry(event: BlockStored) -> tuple[int, bool]:
    return event.block_size, not isinstance(event.token_ids[0], int)


def sequence(tokens: Any) -> list[int]:
    """The tokens that pairs come from."""
    return tokens if isinstance(tokens[0], int) else [tokens[0][0], *(pair[1] for pair in tokens)]


def cut(tokens: list[int], size: int, pairs: bool) -> list[tuple[int, ...]]:
    """The tokens of each whole block; blocks of pairs share a token with the next."""
    count = (len(tokens) - pairs) // size
    return [tuple(tokens[size * index : size * (index + 1) + pairs]) for index in range(count)]


def extra(event: BlockStored, index: int) -> tuple[Any, ...]:
    """What identifies a block besides namespace and tokens: here, images only."""
    entry = (event.extra_keys[index] if event.extra_keys else None) or []
    return tuple(tuple(item) for item in entry if not isinstance(item, str))


class Found(NamedTuple):
    total: int
    tiers: dict[str, int]
    fastest: dict[str, int]
    usable: int


def match(source: Source, block_size: int, tokens: list[int], space: Any, images: list[Any]) -> Found | None:
    """How much of a prompt a source holds, in index blocks; `images` in blocks of the source's own size."""
    if source.geometry is None:
        return None
    size, pairs = source.geometry
    full = source.full_groups()
    tiers: dict[Content, set[int]] = {}
    groups: dict[Content, set[int]] = {}
    for block, copies in source.held.copies.items():
        content = source.content(block)
        if content is not None:
            tiers.setdefault(content, set()).update(tier for tier, group in copies if group in full)
            groups.setdefault(content, set()).update(group for _, group in copies)
    path: Content = (space,)
    pages: list[tuple[set[int], set[int]]] = []
    for index, part in enumerate(cut(tokens, size, pairs)):
        path = (*path, (part, tuple(tuple(item) for item in images[index] or []) if index < len(images) else ()))
        if not tiers.get(path):
            break
        pages.append((tiers[path], groups[path]))

    def blocks(count: int) -> int:
        return count * size // block_size

    def leading(tier: int) -> int:
        return next((index for index, (held, _) in enumerate(pages) if tier not in held), len(pages))

    total = blocks(len(pages))
    fastest = Counter(
        max(min(pages[page][0]) for page in range(block * block_size // size, -(-(block + 1) * block_size // size)))
        for block in range(total)
    )
    ends = [end for end in range(len(pages) + 1) if all(reaches(source, group, pages[:end]) for group in source.kinds)]
    return Found(
        total,
        {name: blocks(leading(tier)) for tier, name in enumerate(TIERS)},
        {name: fastest[tier] for tier, name in enumerate(TIERS)},
        blocks(max(ends)),
    )


def reaches(source: Source, group: int, pages: list[tuple[set[int], set[int]]]) -> bool:
    """Whether a group holds what it needs at the end of a prefix."""
    kind, window = source.kinds[group]
    size = source.geometry[0] if source.geometry else 1
    need = {"sliding_window": -(-((window or 10**9) - 1) // size), "mamba": 1}.get(kind, 0)
    return all(group in groups for _, groups in pages[max(0, len(pages) - need) :]) or not need
