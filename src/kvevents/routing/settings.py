"""How requests are placed: every weight, with its unit and what it is for."""

import math
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from kvevents.errors import ConfigError

POLICY_NAMES = ("kv", "approx", "round_robin", "random", "least_loaded")
"""The policies; `POLICIES` makes them."""

TIER_WEIGHTS: Mapping[str, float] = MappingProxyType({"GPU": 1.0, "CPU_PINNED": 0.9, "DISK": 0.6, "EXTERNAL": 0.5})
"""What a token found in each tier saves of the time it takes to compute it. To copy from host memory takes about a
tenth of that time, to read from a disk or over a network about half."""


class RoutingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[routing]` section. Costs are in tokens of prefill: what the engine computes in the same time.

    Attributes:
        policy: `kv` goes by what the caches hold and by load, `approx` does the same without events, from what was
            sent where; `round_robin`, `random` and `least_loaded` look at no cache.
        prefill_weight: what a token that this prompt would have to compute counts for, where a token that waits before
            it counts for 1. Above 1, since to compute again what another worker holds delays every request behind it
            as well.
        held_weight: what a token of KV cache that a request holds counts for, from its placing to its end: it slows
            each step, and where memory is short others wait for its room, however little they have to compute.
        balance_weight: what a token of work that a worker did of late, above the least busy one, counts for (as far as
            it was for prompts that begin as this one does; see docs/routing.md).
        request_tokens: what answering one request counts for as work besides its prompt.
        memory_tokens: recent work is half forgotten after so many computed tokens per candidate.
        tier_weights: what a token held in a tier saves of computing it, 0 to 1; tiers left out keep their defaults.
        trust: what a match is worth while the worker's event source is not live, 0 to 1: its blocks may be gone.
        temperature: 0 takes the least cost. Above, candidates are drawn: one that costs a `temperature` of the
            prompt's length more is chosen 1/e times as often.
        seed: of the drawing, for runs that can be repeated; None takes a new one each time.
        session_affinity: keep a session's requests on one worker, until it is gone or overloaded.
        session_ttl_s: a session that was silent for so long is forgotten.
        max_sessions: the longest silent ones above this number are forgotten.
        session_patience_tokens: a session's worker is overloaded when so many tokens more wait there than elsewhere.
        learned_ttl_s: what was sent to a worker without (trustworthy) events counts as held for so long.
        learned_max_blocks: blocks remembered of what was sent where, over all workers; 40 bytes each and a table.
        reported_half_life_s: what an engine said about its load counts half after so long.
    """

    policy: str = "kv"
    prefill_weight: float = 2.0
    held_weight: float = 0.2
    balance_weight: float = 1.0
    request_tokens: int = 128
    memory_tokens: int = 250_000
    tier_weights: dict[str, float] = {}
    trust: float = 0.5
    temperature: float = 0.0
    seed: int | None = None
    session_affinity: bool = False
    session_ttl_s: float = 900.0
    max_sessions: int = 65_536
    session_patience_tokens: int = 16_384
    learned_ttl_s: float = 600.0
    learned_max_blocks: int = 524_288
    reported_half_life_s: float = 5.0

    def __post_init__(self) -> None:
        if self.policy not in POLICY_NAMES:
            raise ConfigError(f"policy: expected one of {', '.join(POLICY_NAMES)}, got {self.policy!r}")
        for name in ("prefill_weight", "held_weight", "balance_weight", "temperature", "request_tokens"):
            _check(name, getattr(self, name), above=False)
        for name in ("memory_tokens", "session_ttl_s", "max_sessions", "learned_ttl_s", "reported_half_life_s"):
            _check(name, getattr(self, name), above=True)
        for name in ("session_patience_tokens", "learned_max_blocks"):
            _check(name, getattr(self, name), above=False)
        if unknown := self.tier_weights.keys() - TIER_WEIGHTS.keys():
            raise ConfigError(f"tier_weights: expected {', '.join(TIER_WEIGHTS)}, got {', '.join(sorted(unknown))}")
        for name, share in (("trust", self.trust), *(("tier_weights", value) for value in self.tier_weights.values())):
            if not 0 <= share <= 1:
                raise ConfigError(f"{name}: expected 0 to 1, got {share}")

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of every tier, fastest first."""
        return {**TIER_WEIGHTS, **self.tier_weights}


def _check(name: str, value: float, *, above: bool) -> None:
    if not (value > 0 if above else value >= 0) or math.isinf(value):
        raise ConfigError(f"{name}: expected a number {'above 0' if above else '>= 0'}, got {value}")
