"""How long something took, counted by length."""

from bisect import bisect_left
from itertools import accumulate

from kvevents.server.metrics.family import Family


class Histogram:
    """Counts values by buckets, for one thread: two list operations a value, no lock.

    Args:
        family: what it is.
        bounds: upper ends of the buckets; one without an end is added.
    """

    __slots__ = ("_bounds", "_counts", "_family", "_sum")

    def __init__(self, family: Family, bounds: tuple[float, ...]) -> None:
        self._family = family
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def render(self) -> str:
        """Its lines."""
        name = self._family.name
        ends = [*map(str, self._bounds), "+Inf"]
        buckets = [
            f'{name}_bucket{{le="{end}"}} {count}\n' for end, count in zip(ends, accumulate(self._counts), strict=True)
        ]
        return (
            self._family.render(()) + "".join(buckets) + f"{name}_sum {self._sum}\n{name}_count {sum(self._counts)}\n"
        )
