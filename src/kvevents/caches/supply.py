"""The slots that a caller brings to an insert."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

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

    def take(self, gaps: Sequence[range]) -> "array[int]":
        """The slots for units that have none."""
        taken: array[int] = array("q")
        for gap in gaps:
            taken += self.slots[gap.start - self.start : gap.stop - self.start]
        return taken
