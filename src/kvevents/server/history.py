"""How the figures went: sums per second for the last minutes, per ten seconds for the last hours."""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from kvevents.server.dashboard.settings import DashboardSettings

STEPS_PER_OCTAVE = 8
"""Latencies are counted in steps of 2 ** (1 / 8): a percentile is at most 9 % above the true one."""


class Latencies:
    """Durations, counted by magnitude, so that seconds add up to minutes.

    Attributes:
        counts: how many were within each step and not within the one before.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[math.ceil(math.log2(max(seconds, 1e-6)) * STEPS_PER_OCTAVE)] += 1

    def add_all(self, other: "Latencies") -> None:
        """Count those of another."""
        self.counts.update(other.counts)

    def percentile(self, share: float) -> float | None:
        """Seconds within which this share of them ended; None of none."""
        rest = share * self.counts.total()
        for step in sorted(self.counts):
            rest -= self.counts[step]
            if rest <= 0:
                return float(2 ** (step / STEPS_PER_OCTAVE))
        return None


SUMS = (
    "requests",
    "failed_requests",
    "prompt_tokens",
    "expected_cached_tokens",
    "all_knowing_cached_tokens",
    "reports",
    "reported_prompt_tokens",
    "reported_cached_tokens",
    "batches",
    "events",
    "blocks_stored",
    "blocks_removed",
)
"""What a bucket sums. The three hit rates are over requests that were answered, each by its own denominator."""

PERCENTILES = (50, 95, 99)

COLUMNS = ("at", *SUMS, *(f"latency_p{percent}_s" for percent in PERCENTILES))
"""Names of the figures in a row, in order. `at` is when the bucket began, unix seconds."""


class Bucket:
    """The sums of one stretch of time, which do not change any more once it is over."""

    __slots__ = ("_row", "at", "latencies", "sums")

    def __init__(self, at: int) -> None:
        self.at = at
        self._row: list[float | None] | None = None
        self.sums: Counter[str] = Counter()
        self.latencies = Latencies()

    def add_all(self, other: "Bucket") -> None:
        """Take in what another summed."""
        self.sums.update(other.sums)
        self.latencies.add_all(other.latencies)

    def row(self, *, is_over: bool = True) -> list[float | None]:
        """The figures in the order of `COLUMNS`."""
        if self._row is not None:
            return self._row
        percentiles = (self.latencies.percentile(percent / 100) for percent in PERCENTILES)
        row = [self.at, *(self.sums[name] for name in SUMS), *percentiles]
        if is_over:
            self._row = row
        return row


class History:
    """Two rings of buckets. What happens is added to the second it happens in; a second that is over never changes.

    Args:
        settings: how many buckets there are.
        clock: unix seconds.
    """

    def __init__(self, settings: DashboardSettings, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._width = settings.coarse_bucket_s
        now = int(clock())
        self._fine: deque[Bucket] = deque([Bucket(now)], maxlen=settings.fine_buckets)
        self._coarse: deque[Bucket] = deque([Bucket(now // self._width * self._width)], maxlen=settings.coarse_buckets)

    def add(self, name: str, amount: int) -> None:
        """Add to one of `SUMS`."""
        self._now().sums[name] += amount

    def answered(
        self, prompt_tokens: int, expected: int, reported: tuple[int, int] | None, seconds: float | None
    ) -> None:
        """Count a request that was answered.

        Args:
            prompt_tokens: of its prompt.
            expected: tokens that were expected to be found cached.
            reported: prompt tokens and cached tokens as the engine says; None where it does not.
            seconds: how long it took; None where that is not known.
        """
        bucket = self._now()
        sums = bucket.sums
        sums["requests"] += 1
        sums["prompt_tokens"] += prompt_tokens
        sums["expected_cached_tokens"] += expected
        if reported is not None:
            prompt, cached = reported
            sums["reports"] += 1
            sums["reported_prompt_tokens"] += prompt
            sums["reported_cached_tokens"] += cached
        if seconds is not None:
            bucket.latencies.add(seconds)

    def add_latency(self, seconds: float) -> None:
        """Count a request's duration."""
        self._now().latencies.add(seconds)

    def rows_since(self, at: float) -> list[list[float | None]]:
        """Seconds that are over and began after `at`, oldest first."""
        self._now()
        rows = []
        for bucket in self._over():
            if bucket.at <= at:
                break
            rows.append(bucket.row())
        return rows[::-1]

    def document(self) -> dict[str, Any]:
        """Both rings, without the second that is not over yet; the last long bucket holds what is over of it."""
        fine = self.rows_since(-math.inf)
        coarse = [bucket.row(is_over=bucket is not self._coarse[-1]) for bucket in self._coarse]
        return {
            "columns": COLUMNS,
            "fine": {"step_s": 1, "rows": fine},
            "coarse": {"step_s": self._width, "rows": coarse},
        }

    def recent(self, seconds: int) -> Counter[str]:
        """Sums of the last full seconds."""
        self._now()
        sums: Counter[str] = Counter()
        for bucket, _ in zip(self._over(), range(seconds), strict=False):
            sums.update(bucket.sums)
        return sums

    def recent_latencies(self, seconds: int) -> Latencies:
        """Durations in the last full seconds."""
        self._now()
        latencies = Latencies()
        for bucket, _ in zip(self._over(), range(seconds), strict=False):
            latencies.add_all(bucket.latencies)
        return latencies

    def _over(self) -> Iterator[Bucket]:
        """Seconds that are over, newest first."""
        newest_first = reversed(self._fine)
        next(newest_first)
        return newest_first

    def _now(self) -> Bucket:
        """The bucket of this second. Seconds in which nothing was asked get theirs too; a long sleep leaves a hole."""
        second = int(self._clock())
        last = self._fine[-1]
        if second <= last.at:  # a clock that was set back adds to the newest
            return last
        for at in range(max(last.at + 1, second - (self._fine.maxlen or 0)), second + 1):
            self._sum_up(self._fine[-1])
            self._fine.append(Bucket(at))
        return self._fine[-1]

    def _sum_up(self, over: Bucket) -> None:
        at = over.at // self._width * self._width
        if self._coarse[-1].at != at:
            self._coarse.append(Bucket(at))
        self._coarse[-1].add_all(over)
