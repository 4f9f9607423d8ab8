"""The choice of a candidate behind one Protocol, and the policies that look at no cache."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kvevents.errors import ConfigError
from kvevents.routing.decision import Score
from kvevents.routing.kv import KvPolicy


class Policy(Protocol):
    """Gives each candidate a cost. The router takes the least; equals take turns, the least recently chosen first."""

    @property
    def name(self) -> str:
        """What users call it."""

    def cost(self, candidate: Score, /) -> float:
        """The cost of sending this prompt to this candidate; reads every field but `cost`."""

    def reason(self, chosen: Score, others: Sequence[Score]) -> str:
        """Why the chosen one, in one sentence; `others` come by rising cost."""


class RoundRobinPolicy:
    """All candidates cost the same, so they take turns."""

    name = "round_robin"

    def cost(self, _candidate: Score, /) -> float:
        return 0.0

    def reason(self, chosen: Score, others: Sequence[Score]) -> str:
        return f"it is the turn of {chosen.worker} rank {chosen.dp_rank} among {len(others) + 1}"


class RandomPolicy:
    """Each candidate draws its cost."""

    name = "random"

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)  # noqa: S311 - spreads load, guards nothing

    def cost(self, _candidate: Score, /) -> float:
        return self._random.random()

    def reason(self, chosen: Score, others: Sequence[Score]) -> str:
        return f"{chosen.worker} rank {chosen.dp_rank} was drawn among {len(others) + 1}"


class LeastLoadedPolicy:
    """The fewest open requests, then the fewest tokens still to compute."""

    name = "least_loaded"

    def cost(self, candidate: Score, /) -> float:
        # A queue below 2**40 tokens orders candidates only among equal counts of requests.
        return candidate.requests + candidate.queued / 2**40

    def reason(self, chosen: Score, others: Sequence[Score]) -> str:
        least = f", the least of {len(others) + 1}" if others else ""
        return f"{chosen.worker} rank {chosen.dp_rank} has {chosen.requests} open requests{least}"


POLICIES: Mapping[str, Callable[[], Policy]] = {
    "kv": KvPolicy,
    "round_robin": RoundRobinPolicy,
    "random": RandomPolicy,
    "least_loaded": LeastLoadedPolicy,
}


def make_policy(name: str) -> Policy:
    """The policy of that name with its defaults.

    Raises:
        ConfigError: no policy has that name.
    """
    if name not in POLICIES:
        raise ConfigError(f"policy: expected one of {', '.join(POLICIES)}, got {name!r}")
    return POLICIES[name]()
