"""A fleet in one process and in virtual time: real caches, schedulers, events, index and router."""

import hashlib
import random
import sys
from array import array
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from kvevents.engine.assembly import make_rank
from kvevents.engine.config import EngineConfig
from kvevents.engine.rank import Rank
from kvevents.engine.request import Request, RequestState
from kvevents.engine.timing import TimingModel
from kvevents.errors import CapacityError, ConfigError
from kvevents.events import StorageMedium
from kvevents.index import PrefixIndex
from kvevents.routing import POLICIES, Router, RoutingSettings
from kvevents.simulation.agenda import Agenda, RankDriver
from kvevents.simulation.comparison import RankComparison, RankHoldings, compare_rank
from kvevents.simulation.delivery import Delivery, DeliveryFigures, Travel
from kvevents.simulation.oracle import CacheView
from kvevents.simulation.replay import Outcome

SimulatedCache = Literal["radix", "hierarchical", "block_pool"]
"""Kinds of engines that can be simulated: like SGLang, the same with host memory below the device, like vLLM."""

ORACLE = "oracle"
"""The policy `kv`, cost and books as they are, that asks the caches themselves in place of the index."""

ORACLE_POLICY = "kv"


class VirtualFleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet is made of.

    Attributes:
        engines: how many, each with one rank.
        engine: each engine's settings.
        travel: how their events reach the router.
        routing: the router's weights; its policy and its seed are named apart.
        seed: of all that is drawn: lost batches, outputs, random policies.
    """

    engines: int
    engine: EngineConfig
    travel: Travel = Travel()
    routing: RoutingSettings = RoutingSettings()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.engines < 1:
            raise ConfigError(f"engines: expected 1 or more, got {self.engines}")


class VirtualFleet:
    """Engines and a router over them.

    Args:
        settings: what it is made of.
        policy: a name in `kvevents.routing.POLICIES`, or `oracle`.
        agenda: the time it lives in.

    Attributes:
        agenda: the time it lives in.
        router: chooses an engine for each request.
        view: what the caches hold.
        travelled: what its events have come to.
    """

    def __init__(self, settings: VirtualFleetSettings, policy: str, agenda: Agenda) -> None:
        self.agenda = agenda
        self.travelled = DeliveryFigures()
        self._seed = settings.seed
        self._index = PrefixIndex(settings.engine.page_size)
        self._drivers: dict[str, RankDriver] = {}
        self._ranks: dict[str, Rank] = {}
        for number in range(settings.engines):
            name = f"engine-{number}"
            self._index.add_worker(name)
            self._drivers[name] = RankDriver(agenda)
            delivery = Delivery(
                agenda,
                self._index,
                name,
                travel=settings.travel,
                figures=self.travelled,
                dice=random.Random(f"{settings.seed} {name}"),  # noqa: S311 - a simulation
            )
            self._ranks[name] = make_rank(settings.engine, self._drivers[name], publisher=delivery, dp_rank=0)
        self.view = CacheView({name: rank.cache for name, rank in self._ranks.items()}, settings.engine.page_size)
        index = self.view if policy == ORACLE else self._index
        name = ORACLE_POLICY if policy == ORACLE else policy
        routing = msgspec.structs.replace(settings.routing, policy=name, seed=settings.seed)
        self.router = Router(index, list(self._ranks), name, settings=routing, clock=agenda.now)
        for name, rank in self._ranks.items():
            self._drivers[name].start(rank)

    @property
    def workers(self) -> list[str]:
        """The engines' names."""
        return list(self._ranks)

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens computed so far, those computed again after a retraction too."""
        return sum(rank.prefilled_tokens for rank in self._ranks.values())

    @property
    def waiting(self) -> int:
        """Requests that wait for their first step."""
        return sum(len(rank.scheduler.waiting) for rank in self._ranks.values())

    def send(
        self, tokens: "array[int]", output_length: int, *, line: int, on_end: Callable[[Outcome], None]
    ) -> Outcome:
        """Route a request now and queue it with its engine.

        Args:
            tokens: its prompt (uint32).
            output_length: tokens to generate.
            line: its number; outputs follow from it.
            on_end: called once, when it has ended or was refused.

        Returns:
            What becomes of it: complete once `on_end` was called.
        """
        outcome = Outcome(line, len(tokens), held_tokens=self.view.most_cached(tokens))
        decision = self.router.select(tokens)
        outcome.worker, outcome.expected_tokens = decision.worker, decision.cached_tokens
        sent_at = self.agenda.now()

        def tell() -> None:
            if outcome.first_token_s is None and request.produced:
                outcome.first_token_s = self.agenda.now() - sent_at
                self.router.prefill_done(decision)
            if request.state is RequestState.FINISHED:
                self.router.complete(decision)
                outcome.cached_tokens = request.cached or 0
                outcome.output_tokens = request.produced
                on_end(outcome)

        request = Request(
            id=str(line),
            tokens=tokens + self._outputs(line, output_length),
            prompt_length=len(tokens),
            stream_every=sys.maxsize,  # the first output is told, and the end
            on_update=tell,
        )
        try:
            self._ranks[decision.worker].submit(request)
        except CapacityError as error:
            self.router.fail(decision)
            outcome.error = str(error)
            on_end(outcome)
        else:
            self._drivers[decision.worker].wake()
        return outcome

    def compare(self) -> list[RankComparison]:
        """The router's index against the caches, once all events have arrived."""
        found = []
        for worker, rank in self._ranks.items():
            held: dict[str, set[int]] = {}
            for block, tier in rank.cache.holdings():
                held.setdefault(StorageMedium(tier).value, set()).add(block)
            known = self._index.holdings(worker).get(0, {})
            theirs = RankHoldings(0, rank.announcer.sequence, held)
            found.append(compare_rank(worker, 0, theirs, RankHoldings(0, None, known)))
        return found

    def close(self) -> None:
        """End the engines."""
        for name, rank in self._ranks.items():
            self._drivers[name].close()
            rank.close()

    def _outputs(self, line: int, count: int) -> "array[int]":
        """Outputs of a request, which no other prompt continues with."""
        stream = hashlib.shake_128(f"{self._seed} {line}".encode())
        return array("I", array("H", stream.digest(2 * count)))


def engine_config(
    *, cache: SimulatedCache, page_size: int, cache_tokens: int, prefill_tokens_per_s: float
) -> EngineConfig:
    """Settings of an engine as the simulation knows them; all others are an engine's defaults.

    Raises:
        ConfigError: one of them makes no sense.
    """
    return EngineConfig(
        cache=cache,
        page_size=page_size,
        max_total_tokens=cache_tokens,
        timing=TimingModel(prefill_tokens_per_second=prefill_tokens_per_s),
    )


def check_policies(names: Iterable[str]) -> None:
    """Raise ConfigError for a policy that there is not."""
    known = [*POLICIES, ORACLE]
    for name in names:
        if name not in known:
            raise ConfigError(f"policy: expected one of {', '.join(known)}, got {name!r}")
