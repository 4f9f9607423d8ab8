"""The choice of a candidate behind one Protocol, and the policies that look at no cache."""

import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from kvevents.routing.decision import Score
from kvevents.routing.kv import KvPolicy
from kvevents.routing.settings import RoutingSettings


class Policy(Protocol):
    """Gives each candidate a cost. The router takes the least; equals take turns, the least recently chosen first."""

    @property
    def name(self) -> str:
        """What users call it."""

    def cost(self, candidate: Score, /) -> float:
        """The cost of sending this prompt to this candidate; reads every field but `cost`."""

    @property
    def weights(self) -> Mapping[str, float]:
        """What one unit of a figure of `Score` adds to the cost, by the figure's name; for explanations."""

    def reason(self, chosen: Score, others: Sequence[Score]) -> str:
        """Why the chosen one, in one sentence; `others` come by rising cost."""


class RoundRobinPolicy:
    """All candidates cost the same, so they take turns."""

    name = "round_robin"

    @property
    def weights(self) -> Mapping[str, float]:
        return {}

    def cost(self, _candidate: Score, /) -> float:
        return 0.0

    def reason(self, chosen: Score, others: Sequence[Score]) -> str:
        return f"it is the turn of {chosen.worker} rank {chosen.dp_rank} among {len(others) + 1}"


class DecodeLoadPolicy:
    """For workers that only produce answers: the least to do. Their caches matter little, since prompts come computed.

    Args:
        name: of the policy that chooses where prompts are computed.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def weights(self) -> Mapping[str, float]:
        return {"queued": 1.0, "held": 1.0}

    def cost(self, candidate: Score, /) -> float:
        return candidate.queued + candidate.held

    def reason(self, chosen: Score, others: Sequence[Score]) -> str:
        least = f", the least of {len(others) + 1}" if others else ""
        return f"{chosen.worker} rank {chosen.dp_rank} answers prompts of {self.cost(chosen):.0f} tokens{least}"


class RandomPolicy:
    """Each candidate draws its cost."""

    name = "random"

    @property
    def weights(self) -> Mapping[str, float]:
        return {}

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)  # noqa: S311 - spreads load, guards nothing

    def cost(self, _candidate: Score, /) -> float:
        return self._random.random()

    def reason(self, chosen: Score, others: Sequence[Score]) -> str:
        return f"{chosen.worker} rank {chosen.dp_rank} was drawn among {len(others) + 1}"


class LeastLoadedPolicy:
    """The fewest open requests, then the fewest tokens still to compute."""

    name = "least_loaded"

    @property
    def weights(self) -> Mapping[str, float]:
        # A queue below 2**40 tokens orders candidates only among equal counts of requests.
        return {"requests": 1.0, "queued": 2.0**-40}

    def cost(self, candidate: Score, /) -> float:
        return candidate.requests + candidate.queued / 2**40

    def reason(self, chosen: Score, others: Sequence[Score]) -> str:
        least = f", the least of {len(others) + 1}" if others else ""
        return f"{chosen.worker} rank {chosen.dp_rank} has {chosen.requests} open requests{least}"


def decode_policy(policy: Policy) -> Policy:
    """What chooses the worker that answers, where `policy` chooses the one that computes the prompt."""
    return DecodeLoadPolicy(policy.name) if isinstance(policy, KvPolicy) else policy


def law_of(policy: Policy) -> tuple[float, float, float] | None:
    """The law by which a policy's costs can be reckoned for all candidates at once; None where it has its own way."""
    if isinstance(policy, KvPolicy) and type(policy).cost is KvPolicy.cost:
        return policy.law
    return None


POLICIES: Mapping[str, Callable[[RoutingSettings], Policy]] = MappingProxyType(
    {
        "kv": KvPolicy,
        "approx": lambda settings: KvPolicy(settings, name="approx"),
        "round_robin": lambda _settings: RoundRobinPolicy(),
        "random": lambda settings: RandomPolicy(settings.seed),
        "least_loaded": lambda _settings: LeastLoadedPolicy(),
    }
)
"""What makes each policy, by the name that users call it."""


def make_policy(policy: RoutingSettings | str) -> Policy:
    """The policy that settings ask for, or the one of a name with its defaults.

    Raises:
        ConfigError: no policy has that name.
    """
    settings = RoutingSettings(policy=policy) if isinstance(policy, str) else policy
    return POLICIES[settings.policy](settings)
