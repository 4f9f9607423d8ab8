"""The slots that a caller brings to an insert."""

from array import array
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kvevents._core.tokens import TokenPages
from kvevents.caches.inputs import Slots
from kvevents.caches.slots import slot_array


class Supply(NamedTuple):
    """Slots for the units of a prompt from `start` on."""

    slots: "array[int]"
    start: int

    @classmethod
    def of(cls, name: str, slots: Slots, tokens: range) -> "Supply":
        """What was passed as `name`, one slot for each of `tokens`.

        Raises:
            ValueError: there are more or fewer.
        """
        own = slot_array(slots)
        if len(own) != len(tokens):
            raise ValueError(f"{name}: expected {len(tokens)}, one a token, got {len(own)}")
        return cls(own, tokens.start)

    def take(self, gaps: Iterable[range]) -> "array[int]":
        """The slots for units that have none."""
        taken: array[int] = array("q")
        for gap in gaps:
            taken += self.slots[gap.start - self.start : gap.stop - self.start]
        return taken


Supplies: TypeAlias = Mapping[str, Supply]
"""Slots by the name of their component."""


def supplies_of(
    prompt: TokenPages,
    slots: Slots | None,
    *,
    window_slots: Slots | None,
    window_start: int,
    state_slot: int | None,
    page_size: int,
    components: Container[str],
) -> Supplies | None:
    """What a caller brings to the insert of a prompt; None where the cache is to take slots of its own.

    Raises:
        ValueError: there are too many or too few, or some for none of the cache's `components`.
    """
    if window_start < 0 or window_start % page_size:
        raise ValueError(f"window_start: expected whole pages of {page_size}, got {window_start} units")
    if slots is None and window_slots is None and state_slot is None:
        return None
    if slots is None:
        raise ValueError("slots: expected one a token, as for the other components, got none")
    tokens = range(prompt.token_count)
    supplies = {"full": Supply.of("slots", slots, tokens)}
    if window_slots is not None:
        supplies["sliding_window"] = Supply.of("window_slots", window_slots, tokens[window_start:])
    if state_slot is not None:
        supplies["mamba"] = Supply(slot_array([state_slot]), len(prompt) * page_size - 1)
    for name in supplies:
        if name not in components:
            raise ValueError(f"slots: got some for {name}, which this cache does not have")
    return supplies


def joined(ranges: Sequence[range]) -> tuple[range, ...]:
    """Ranges in order, those that touch as one."""
    together: list[range] = []
    for each in ranges:
        if together and together[-1].stop == each.start:
            together[-1] = range(together[-1].start, each.stop)
        else:
            together.append(each)
    return tuple(together)
