"""Whether a soak went well: what is forbidden, and what is bounded."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from soak.client import Answer

GROWTH_SHARE = 0.03
"""Of its memory, that a router may grow by after warm-up, or by what the plan allows if that is more."""
DEATH_S = 2.0
"""How long after an engine's death its streams may still be told."""
EXAMPLES = 5


@dataclass
class Death:
    """An engine that was killed, when, and when it was back; monotonic."""

    worker: str
    at: float
    back: float = float("inf")


@dataclass
class Verdict:
    """What was seen.

    Attributes:
        growth_bytes: the router's memory in the last fifth of the time after warm-up may exceed that in the first by so
            much.
        deaths: of engines.
        outcomes: requests by what became of them; a success is `ok`, one whose stream had begun when its engine died
            and was told so is `cut`, everything else is lost.
        lost: examples of those.
        memory: of the router, (monotonic seconds, bytes), after warm-up.
        differences: in what index and engines differ at the end.
        exceptions: that processes wrote.
    """

    growth_bytes: int = 4 * 2**20
    deaths: list[Death] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    differences: Sequence[str] = ()
    exceptions: Sequence[str] = ()

    def take(self, answer: Answer) -> None:
        """Count a request."""
        if answer.is_success:
            self.outcomes["ok"] += 1
        elif self._may_be_cut(answer):
            self.outcomes["cut"] += 1
        else:
            self.outcomes["lost"] += 1
            if len(self.lost) < EXAMPLES:
                self.lost.append(repr(answer))

    def _may_be_cut(self, answer: Answer) -> bool:
        """Whether a stream had begun when its engine died, came to an end nevertheless, and says so."""
        if answer.status != 200 or not answer.is_complete or answer.error is None:
            return False
        return any(
            death.worker == answer.worker and answer.started <= death.at <= answer.ended <= death.at + DEATH_S
            for death in self.deaths
        )

    @property
    def growth(self) -> tuple[int, int]:
        """By how many bytes the router grew after warm-up, and by how many it may have."""
        sizes = [size for _, size in self.memory]
        fifth = max(1, len(sizes) // 5)
        first, last = statistics.median(sizes[:fifth]), statistics.median(sizes[-fifth:])
        return int(last - first), int(max(self.growth_bytes, GROWTH_SHARE * first))

    @property
    def slope(self) -> float:
        """Bytes a minute, by least squares."""
        times, sizes = zip(*self.memory, strict=True)
        return statistics.linear_regression(times, sizes).slope * 60

    @property
    def failures(self) -> list[str]:
        """What went wrong; nothing is what is wanted."""
        grown, allowed = self.growth
        found = [f"lost: {one}" for one in self.lost]
        if grown > allowed:
            found.append(f"memory: the router grew by {grown} bytes after warm-up, allowed are {allowed}")
        found += [f"index: {one}" for one in self.differences]
        found += [f"exception: {one}" for one in self.exceptions]
        if not self.deaths:
            found.append("no engine was killed")
        if not self.outcomes["ok"]:
            found.append("no request was answered")
        return found
