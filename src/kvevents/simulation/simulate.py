"""A trace through a fleet in virtual time, under one policy after the other."""

import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from kvevents.errors import ConfigError
from kvevents.routing import RoutingSettings
from kvevents.simulation.agenda import Agenda
from kvevents.simulation.arrivals import endless_cache, spread, working_set
from kvevents.simulation.delivery import Travel
from kvevents.simulation.demo import Progress
from kvevents.simulation.replay import Outcome
from kvevents.simulation.report import SimulatedFigures, SimulationReport, simulated_figures
from kvevents.simulation.traces import Trace, TraceRequest, read_trace
from kvevents.simulation.virtual_fleet import (
    ORACLE,
    SimulatedCache,
    VirtualFleet,
    VirtualFleetSettings,
    check_policies,
    engine_config,
)

LOAD = 0.7
"""Where settings say nothing of it."""

MOMENT_S = 1e-3
"""As long as the arrivals of a single request take."""


class SimulationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to simulate.

    Attributes:
        trace: a Mooncake trace.
        limit: requests from its start; None takes all.
        policies: run in this order, each on a fresh fleet: names in `kvevents.routing.POLICIES`, or `oracle`.
        engines: how many.
        cache: their kind: like SGLang, with or without host memory below the device, or like vLLM.
        page_size: tokens in a page.
        capacity_share: KV cache of the whole fleet over the trace's distinct prompt tokens. Each engine has at least
            room for the largest request.
        prefill_tokens_per_s: of each engine.
        load: prompt tokens that arrive over what the fleet could compute, as if nothing were cached; the trace's
            arrivals are moved closer together, or apart, until it is so. None: 0.7, or as `arrival_speedup` makes it.
        arrival_speedup: the trace's arrivals are so much closer together; 1 is the trace's own pace.
        travel: how events reach the router.
        routing: the router's weights; its policy and its seed are those named here.
        seed: the same seed, the same figures.
    """

    trace: Path
    limit: int | None = None
    policies: Sequence[str] = ("round_robin", "approx", "kv", ORACLE)
    engines: int = 8
    cache: SimulatedCache = "radix"
    page_size: int = 64
    capacity_share: float = 0.25
    prefill_tokens_per_s: float = 20_000.0
    load: float | None = None
    arrival_speedup: float | None = None
    travel: Travel = Travel()
    routing: RoutingSettings = RoutingSettings()
    seed: int = 0

    def __post_init__(self) -> None:
        check_policies(self.policies)
        if self.engines < 1 or self.page_size < 1:
            raise ConfigError(f"engines, page_size: expected 1 or more, got {self.engines}, {self.page_size}")
        if self.load is not None and self.arrival_speedup is not None:
            raise ConfigError("load, arrival_speedup: expected one of them, got both; each follows from the other")
        for name in ("capacity_share", "prefill_tokens_per_s", "load", "arrival_speedup"):
            if getattr(self, name) is not None and not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}: expected a number above 0, got {getattr(self, name)}")


def run_simulation(settings: SimulationSettings, progress: Progress) -> SimulationReport:
    """Simulate a trace file once per policy and sum up.

    Raises:
        ConfigError: the trace cannot be used.
    """
    trace = read_trace(settings.trace, limit=settings.limit)
    for line in trace.broken:
        progress.note(f"{trace.path}: line {line.line} is skipped: {line.reason}")
    return simulate_trace(trace, settings, progress)


def simulate_trace(trace: Trace, settings: SimulationSettings, progress: Progress) -> SimulationReport:
    """Simulate a trace that was read, whatever its file's form; `trace` and `limit` of the settings say nothing here.

    Raises:
        ConfigError: settings that make no sense.
    """
    distinct = working_set(trace.requests)
    fleet = fleet_settings(settings, trace, distinct)
    arrivals = spread(trace.requests, settings.seed)
    recorded_s = max(arrivals[-1] - arrivals[0], MOMENT_S)
    natural = trace.prompt_tokens / (recorded_s * settings.engines * settings.prefill_tokens_per_s)
    speedup = settings.arrival_speedup or (settings.load or LOAD) / natural
    arrivals = [(arrival - arrivals[0]) / speedup for arrival in arrivals]
    return SimulationReport(
        trace=trace.path.name,
        broken_lines=[line.line for line in trace.broken],
        requests=len(trace.requests),
        prompt_tokens=trace.prompt_tokens,
        distinct_tokens=distinct,
        span_s=arrivals[-1],
        arrival_speedup=speedup,
        load=natural * speedup,
        engines=settings.engines,
        page_size=settings.page_size,
        cache_tokens=fleet.engine.max_total_tokens,
        prefill_tokens_per_s=settings.prefill_tokens_per_s,
        delay_s=settings.travel.delay_s,
        loss=settings.travel.loss,
        seed=settings.seed,
        endless_cached_share=endless_cache(trace.requests, settings.page_size) / trace.prompt_tokens,
        policies=[_run_policy(fleet, policy, trace, arrivals, progress) for policy in settings.policies],
    )


def fleet_settings(settings: SimulationSettings, trace: Trace, distinct: int) -> VirtualFleetSettings:
    """The fleet for a trace with so many distinct prompt tokens."""
    page = settings.page_size
    largest = max(request.input_length + request.output_length for request in trace.requests)
    wanted = int(settings.capacity_share * distinct / settings.engines)
    engine = engine_config(
        cache=settings.cache,
        page_size=page,
        cache_tokens=-(-max(largest, wanted) // page) * page,
        prefill_tokens_per_s=settings.prefill_tokens_per_s,
    )
    return VirtualFleetSettings(
        engines=settings.engines, engine=engine, travel=settings.travel, routing=settings.routing, seed=settings.seed
    )


def _run_policy(
    settings: VirtualFleetSettings, policy: str, trace: Trace, arrivals: Sequence[float], progress: Progress
) -> SimulatedFigures:
    start = time.monotonic()
    agenda = Agenda()
    fleet = VirtualFleet(settings, policy, agenda)
    progress.begin(policy, len(trace.requests))
    outcomes: list[Outcome] = []
    waiting: list[int] = []
    turns: dict[str, deque[TraceRequest]] = {}

    def send(request: TraceRequest) -> None:
        def end(outcome: Outcome) -> None:
            progress.advance(outcome)
            if request.session is not None:
                later = turns[request.session]
                later.popleft()
                if later:
                    agenda.at(agenda.now(), partial(send, later[0]))

        waiting.append(fleet.waiting)
        outcomes.append(fleet.send(request.tokens(), request.output_length, line=request.line, on_end=end))

    def arrive(number: int) -> None:
        request = trace.requests[number]
        line = turns.setdefault(request.session, deque()) if request.session is not None else None
        if line is not None:
            line.append(request)
        if line is None or len(line) == 1:
            send(request)
        if number + 1 < len(arrivals):
            agenda.at(arrivals[number + 1], partial(arrive, number + 1))

    agenda.at(arrivals[0], partial(arrive, 0))
    agenda.run()
    figures = simulated_figures(
        policy,
        outcomes,
        workers=fleet.workers,
        prefill_tokens_per_s=settings.engine.timing.prefill_tokens_per_second,
        waiting=waiting,
        busy_share=fleet.prefilled_tokens
        / (settings.engine.timing.prefill_tokens_per_second * settings.engines * agenda.now()),
        took_s=time.monotonic() - start,
        events=fleet.travelled,
        index=fleet.compare(),
    )
    fleet.close()
    return figures
