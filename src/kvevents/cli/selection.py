"""Which part of an event stream is shown."""

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import msgspec

from kvevents.cli.stream import Batch, Item
from kvevents.events import AllBlocksCleared, BlockRemoved, KVCacheEvent

Kind: TypeAlias = Literal["stored", "removed", "cleared", "state"]
Tier: TypeAlias = Literal["GPU", "CPU_PINNED", "DISK", "EXTERNAL"]

_TIERS: dict[str, Tier] = {
    **{tier: tier for tier in get_args(Tier)},
    "CPU": "CPU_PINNED",
    "FS": "DISK",
    "STORAGE": "DISK",
    "OBJ": "EXTERNAL",
}
"""Spellings of the tiers, as the index takes them (held by a test against it)."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown; an empty choice is everything.

    Attributes:
        workers: ids.
        ranks: as the batches say, else the sources.
        tiers: of stores and removals; a clear is of every tier.
        kinds: of events; `state` is all that is no event: states, what was skipped or refused, new beginnings.
    """

    workers: Sequence[str] = ()
    ranks: Sequence[int] = ()
    tiers: Sequence[Tier] = ()
    kinds: Sequence[Kind] = ()

    def of(self, item: Item) -> Item | None:
        """The item with what is shown of it; None if that is nothing."""
        origin = item.origin
        if self.workers and origin.worker not in self.workers:
            return None
        if self.ranks and origin.dp_rank not in self.ranks:
            return None
        shows_states = not self.kinds or "state" in self.kinds
        if not isinstance(item, Batch):
            return item if shows_states else None
        if not (self.kinds or self.tiers):
            return item
        events = [event for event in item.batch.events if self._shows(event)]
        skipped = item.batch.skipped if shows_states else []
        return Batch(origin, msgspec.structs.replace(item.batch, events=events, skipped=skipped))

    def _shows(self, event: KVCacheEvent) -> bool:
        if isinstance(event, AllBlocksCleared):
            return not self.kinds or "cleared" in self.kinds
        if self.kinds and ("removed" if isinstance(event, BlockRemoved) else "stored") not in self.kinds:
            return False
        return not self.tiers or tier_of(event.medium, getattr(event, "locality", None)) in self.tiers


def tier_of(medium: str | None, locality: str | None = None) -> Tier | None:
    """The tier that an event's medium means; None for one that nobody knows."""
    if locality is not None and locality.upper() == "REMOTE":
        return "EXTERNAL"
    return "GPU" if medium is None else _TIERS.get(medium.upper())
