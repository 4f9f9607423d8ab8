"""Families of prompts that share a long beginning, some of them in flight at any time: who gets which family?

A router that only follows its caches leaves engines idle when there are fewer families than engines; one that only
balances makes every engine compute every family. Neither shows in a hit rate alone.
"""

import itertools
import random
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from kvevents.routing import RoutingSettings
from kvevents.simulation.agenda import Agenda
from kvevents.simulation.delivery import Travel
from kvevents.simulation.replay import Outcome
from kvevents.simulation.report import percentile
from kvevents.simulation.traces import TRACE_BLOCK, block_tokens
from kvevents.simulation.virtual_fleet import (
    ORACLE,
    SimulatedCache,
    VirtualFleet,
    VirtualFleetSettings,
    check_policies,
    engine_config,
)

BLOCKS = 4
"""Blocks of 512 tokens that all prompts of a family begin with."""

OWN_TOKENS = 128
"""Tokens of a prompt that are its own."""

OUTPUTS = 20
"""Tokens of an answer."""

ZIPF = 1.2
"""The exponent of how much more often earlier families are asked for, where they are not alike."""


class FamilyLoad(msgspec.Struct, frozen=True):
    """What is asked of a fleet.

    Attributes:
        families: how many.
        in_flight: requests that are under way at any time: one ends, the next is sent.
        requests: in all.
        is_skewed: earlier families are asked for more often (Zipf), else all alike.
    """

    families: int
    in_flight: int
    requests: int
    is_skewed: bool = False

    def __str__(self) -> str:
        how = ", skewed" if self.is_skewed else ""
        flight = "one at a time" if self.in_flight == 1 else f"{self.in_flight} in flight"
        return f"{self.families} families{how}, {flight}"


LOADS = (
    FamilyLoad(3, 12, 400),
    FamilyLoad(3, 1, 400),
    FamilyLoad(3, 32, 600),
    FamilyLoad(12, 16, 600),
    FamilyLoad(40, 32, 1000, is_skewed=True),
)
"""The loads under which routing proxies were watched, and the first of them one request at a time."""


class FamilyFigures(msgspec.Struct, kw_only=True):
    """What one policy made of one load.

    Attributes:
        policy: by which the router chose.
        load: in words.
        requests_by_engine: requests, by engine.
        idle_engines: those that got none.
        cold_pairs: families and engines that came together: each had to compute the family's beginning there once.
        cold_most: the most engines that one family came to.
        computed: requests that computed their family's beginning; more than `cold_pairs` where some came together.
        in_flight_most: the most requests that one engine had at a time.
        cached_share: prompt tokens found cached, over all.
        first_token_p50_s: time to first token, median.
        first_token_p99_s: the same, 99th percentile.
    """

    policy: str
    load: str
    requests_by_engine: dict[str, int]
    idle_engines: int
    cold_pairs: int
    cold_most: int
    computed: int
    in_flight_most: int
    cached_share: float
    first_token_p50_s: float | None
    first_token_p99_s: float | None


class FamilyReport(msgspec.Struct, kw_only=True):
    """Each load under each policy.

    Attributes:
        engines: of one rank each.
        page_size: tokens in a page.
        prefill_tokens_per_s: of each engine.
        delay_s: from an engine's publishing to the router's index.
        seed: of all that is drawn.
        figures: load by load, policies in the order they were run.
    """

    engines: int
    page_size: int
    prefill_tokens_per_s: float
    delay_s: float
    seed: int
    figures: list[FamilyFigures]


class FamilySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is to have the loads.

    Attributes:
        policies: run in this order, each on a fresh fleet: names in `kvevents.routing.POLICIES`, or `oracle`.
        loads: one after the other.
        engines: how many.
        cache: their kind: like SGLang, with or without host memory below the device, or like vLLM; it has room
            for everything.
        page_size: tokens in a page.
        prefill_tokens_per_s: of each engine.
        travel: how events reach the router.
        routing: the router's weights; its policy and its seed are those named here.
        seed: the same seed, the same figures.
    """

    policies: Sequence[str] = ("round_robin", "approx", "kv", ORACLE)
    loads: Sequence[FamilyLoad] = LOADS
    engines: int = 4
    cache: SimulatedCache = "radix"
    page_size: int = 64
    prefill_tokens_per_s: float = 20_000.0
    travel: Travel = Travel()
    routing: RoutingSettings = RoutingSettings()
    seed: int = 0

    def __post_init__(self) -> None:
        check_policies(self.policies)

    def fleet(self) -> VirtualFleetSettings:
        """A fleet whose caches have room for everything."""
        tokens = max(load.families * BLOCKS * TRACE_BLOCK + load.requests * 2 * OWN_TOKENS for load in self.loads)
        engine = engine_config(
            cache=self.cache,
            page_size=self.page_size,
            cache_tokens=tokens + self.page_size * max(load.requests for load in self.loads),
            prefill_tokens_per_s=self.prefill_tokens_per_s,
        )
        return VirtualFleetSettings(
            engines=self.engines, engine=engine, travel=self.travel, routing=self.routing, seed=self.seed
        )


def family_report(settings: FamilySettings) -> FamilyReport:
    """Let a fresh fleet have each load under each policy.

    Raises:
        ConfigError: settings that make no sense.
    """
    fleet = settings.fleet()
    return FamilyReport(
        engines=settings.engines,
        page_size=settings.page_size,
        prefill_tokens_per_s=settings.prefill_tokens_per_s,
        delay_s=settings.travel.delay_s,
        seed=settings.seed,
        figures=[run_families(load, policy, fleet) for load in settings.loads for policy in settings.policies],
    )


def run_families(load: FamilyLoad, policy: str, settings: VirtualFleetSettings) -> FamilyFigures:
    """Let a fleet have one load under one policy."""
    asked = _Asked(load, VirtualFleet(settings, policy, Agenda()), settings.seed)
    asked.run()
    return asked.figures(policy)


class _Asked:
    def __init__(self, load: FamilyLoad, fleet: VirtualFleet, seed: int) -> None:
        self._load = load
        self._fleet = fleet
        dice = random.Random(seed)  # noqa: S311 - a simulation
        weights = [1 / number**ZIPF if load.is_skewed else 1.0 for number in range(1, load.families + 1)]
        self._families: Sequence[int] = dice.choices(range(load.families), weights, k=load.requests)
        self._lines = itertools.count(1)
        self._outcomes: list[Outcome] = []
        self._in_flight: Counter[str] = Counter()
        self._in_flight_most = 0

    def run(self) -> None:
        agenda = self._fleet.agenda
        for _ in range(min(self._load.in_flight, self._load.requests)):
            agenda.at(0.0, self._send)
        agenda.run()
        self._fleet.close()

    def figures(self, policy: str) -> FamilyFigures:
        by_engine = dict.fromkeys(self._fleet.workers, 0)
        computed = 0
        met: defaultdict[int, set[str]] = defaultdict(set)
        for outcome in self._outcomes:
            assert outcome.worker is not None, "every request was sent somewhere"
            family = self._families[outcome.line - 1]
            by_engine[outcome.worker] += 1
            met[family].add(outcome.worker)
            computed += outcome.cached_tokens < outcome.prompt_tokens - 2 * OWN_TOKENS
        first_token_s = [outcome.first_token_s for outcome in self._outcomes if outcome.first_token_s is not None]
        return FamilyFigures(
            policy=policy,
            load=str(self._load),
            requests_by_engine=by_engine,
            idle_engines=sum(not count for count in by_engine.values()),
            cold_pairs=sum(map(len, met.values())),
            cold_most=max(map(len, met.values())),
            computed=computed,
            in_flight_most=self._in_flight_most,
            cached_share=sum(o.cached_tokens for o in self._outcomes) / sum(o.prompt_tokens for o in self._outcomes),
            first_token_p50_s=percentile(first_token_s, 50),
            first_token_p99_s=percentile(first_token_s, 99),
        )

    def _send(self) -> None:
        line = next(self._lines)
        if line > self._load.requests:
            return
        family = self._families[line - 1]
        blocks = b"".join(block_tokens(family * BLOCKS + number) for number in range(BLOCKS))
        own = block_tokens(self._load.families * BLOCKS + line)[: 4 * OWN_TOKENS]
        outcome = self._fleet.send(array("I", blocks + own), OUTPUTS, line=line, on_end=self._end)
        assert outcome.worker is not None, "the fleet has workers"
        self._outcomes.append(outcome)
        self._in_flight[outcome.worker] += 1
        self._in_flight_most = max(self._in_flight_most, self._in_flight[outcome.worker])

    def _end(self, outcome: Outcome) -> None:
        assert outcome.worker is not None, "it was sent"
        self._in_flight[outcome.worker] -= 1
        self._fleet.agenda.at(self._fleet.agenda.now(), self._send)
