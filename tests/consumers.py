"""Consumers of event streams in plain Python: to all of them a coalesced stream must look like the raw one."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

from kvevents.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent

TIERS = {
    "gpu": "GPU",
    "cpu": "CPU_PINNED",
    "cpu_pinned": "CPU_PINNED",
    "disk": "DISK",
    "fs": "DISK",
    "storage": "DISK",
    "obj": "EXTERNAL",
    "external": "EXTERNAL",
}


class Held(NamedTuple):
    """A block in a tier and a group. The block is the same number for every form of its hash."""

    block: int
    tier: str
    group: int


def key(block: BlockHash) -> int:
    """One number for a hash as bytes, as unsigned and as signed integer."""
    return int.from_bytes(block[-8:], "big") if isinstance(block, bytes) else block % (1 << 64)


def tier_of(event: BlockStored | BlockRemoved) -> str | None:
    """The tier by its one name; None where the event names none, and a name of nobody's for one that is not known."""
    if (event.locality or "").upper() == "REMOTE":
        return "EXTERNAL"
    return None if event.medium is None else TIERS.get(event.medium.lower(), "?")


class Sets:
    """Keeps a set: a block is held from its first store to its next removal."""

    def __init__(self) -> None:
        self._copies: Counter[Held] = Counter()

    def apply(self, events: Iterable[KVCacheEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    self._remove(event)
                case AllBlocksCleared():
                    self._copies.clear()

    def held(self) -> set[Held]:
        return set(self._copies)

    def _store(self, event: BlockStored) -> None:
        for block in event.block_hashes:
            held = Held(key(block), tier_of(event) or "GPU", event.group_idx or 0)
            self._copies[held] = self._copies_after_store(self._copies[held])

    def _copies_after_store(self, before: int) -> int:
        return 1

    def _remove(self, event: BlockRemoved) -> None:
        tier, group = tier_of(event), event.group_idx or 0
        for block in map(key, event.block_hashes):
            if tier == "?":  # which tier was meant? Over-removal is the safe side
                self._forget(held for held in self.held() if held.block == block)
            elif tier is None:
                lower = (Held(block, name, group) for name in {*TIERS.values()} - {"GPU"})
                self._forget(lower)
                self._take(Held(block, "GPU", group))
            else:
                self._take(Held(block, tier, group))

    def _take(self, held: Held) -> None:
        self._copies[held] -= 1
        if self._copies[held] <= 0:
            del self._copies[held]

    def _forget(self, gone: Iterable[Held]) -> None:
        for held in gone:
            del self._copies[held]


class Counts(Sets):
    """Counts copies: a block is held until as many were removed as were stored."""

    def _copies_after_store(self, before: int) -> int:
        return before + 1


class DropsOrphans(Sets):
    """Drops a store whose parent it does not hold: in any tier or group, or (`in_place`) in those of the store."""

    def __init__(self, *, in_place: bool = False) -> None:
        super().__init__()
        self._in_place = in_place

    def _store(self, event: BlockStored) -> None:
        if self.is_orphan(event):
            return
        super()._store(event)

    def is_orphan(self, event: BlockStored) -> bool:
        if event.parent_block_hash is None:
            return False
        parent = key(event.parent_block_hash)
        if self._in_place:
            return Held(parent, tier_of(event) or "GPU", event.group_idx or 0) not in self._copies
        return all(held.block != parent for held in self._copies)

    def contradicts(self, event: KVCacheEvent) -> bool:
        """Whether the event would be dropped though one of its blocks is held.

        A hash stands for the whole prefix, so an engine that stores in order announces no such event; the merge rule
        of every level relies on that.
        """
        if not isinstance(event, BlockStored) or not self.is_orphan(event):
            return False
        blocks = {key(block) for block in event.block_hashes}
        return any(held.block in blocks for held in self._copies)


class DropsOrphansAndCounts(DropsOrphans, Counts):
    """Both."""


Kind = Literal["sets", "counts", "drops", "drops in place", "drops and counts", "drops and counts in place"]


def consumers() -> dict[Kind, Sets]:
    """One of each kind, holding nothing."""
    return {
        "sets": Sets(),
        "counts": Counts(),
        "drops": DropsOrphans(),
        "drops in place": DropsOrphans(in_place=True),
        "drops and counts": DropsOrphansAndCounts(),
        "drops and counts in place": DropsOrphansAndCounts(in_place=True),
    }


def coherent(events: Iterable[KVCacheEvent]) -> list[KVCacheEvent]:
    """The events without those that contradict what came before."""
    droppers = [consumer for consumer in consumers().values() if isinstance(consumer, DropsOrphans)]
    kept = []
    for event in events:
        if not any(dropper.contradicts(event) for dropper in droppers):
            kept.append(event)
            for dropper in droppers:
                dropper.apply([event])
    return kept
