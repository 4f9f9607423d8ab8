"""How long something took, counted by length."""

from bisect import bisect_left
from itertools import accumulate

from kvevents.server.metrics.family import Family


class Histogram:
    """Counts values by buckets, for one thread: two list operations a value, no lock.

    Args:
        name: of the metric, without `kvevents_`; ends in its unit.
        meaning: one sentence.
        advice: what to do when it moves.
        bounds: upper ends of the buckets; one without an end is added.
    """

    __slots__ = ("_bounds", "_counts", "_sum", "family")

    def __init__(self, name: str, meaning: str, advice: str, bounds: tuple[float, ...]) -> None:
        self.family = Family(f"kvevents_{name}", "histogram", (), meaning, advice)
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def render(self) -> str:
        """Its lines."""
        name = self.family.name
        ends = [*map(str, self._bounds), "+Inf"]
        buckets = [
            f'{name}_bucket{{le="{end}"}} {count}\n' for end, count in zip(ends, accumulate(self._counts), strict=True)
        ]
        return self.family.render(()) + "".join(buckets) + f"{name}_sum {self._sum}\n{name}_count {sum(self._counts)}\n"
