"""The whole road on a real trace: one fleet per policy, the same requests through each."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from kvevents.engine.config import CacheName
from kvevents.errors import TransportError
from kvevents.simulation.announcements import Listener, event_figures
from kvevents.simulation.arrivals import BUCKET_S
from kvevents.simulation.comparison import RankComparison, compare
from kvevents.simulation.fleet import Fleet, FleetSettings, running_fleet
from kvevents.simulation.readiness import until, until_ready
from kvevents.simulation.replay import Outcome, replay
from kvevents.simulation.report import DemoReport, PolicyFigures, policy_figures
from kvevents.simulation.silence import ending_the_silent
from kvevents.simulation.traces import Trace, read_trace
from kvevents.transport import Source, Subscriber, discover

HEADROOM = 1.5
"""Prefill rate over the trace's mean demand."""

NOTICE_S = 1.0
"""A connection breaks a moment before its process is known to have ended."""


class DemoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    Attributes:
        trace: a Mooncake trace.
        limit: requests from its start; None takes all.
        workers: engines.
        dp_size: ranks of each.
        cache: the engines' cache, and with it their kind.
        page_size: tokens in a page.
        speed: trace seconds per real second.
        policies: run in this order, each on fresh engines.
        cache_tokens: KV cache of each rank; None: whatever the run needs, so that nothing is evicted.
        prefill_tokens_per_s: of each rank; None: 1.5 times the mean demand.
        port: of the router; 0 takes a free one.
    """

    trace: Path
    limit: int | None = 500
    workers: int = 4
    dp_size: int = 1
    cache: CacheName = "radix"
    page_size: int = 64
    speed: float = 10.0
    policies: Sequence[str] = ("round_robin", "kv")
    cache_tokens: int | None = None
    prefill_tokens_per_s: float | None = None
    port: int = 0


class Progress(Protocol):
    """Told how the demo goes."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def begin(self, policy: str, requests: int) -> None:
        """A replay begins."""

    def advance(self, outcome: Outcome) -> None:
        """A request has ended."""


async def run_demo(settings: DemoSettings, progress: Progress) -> DemoReport:
    """Replay a trace once per policy and sum up. No process outlives the call.

    Raises:
        ConfigError: the trace cannot be used.
        TransportError: the fleet could not be started, its router ended, or no request was answered.
    """
    trace = read_trace(settings.trace, limit=settings.limit)
    for line in trace.broken:
        progress.note(f"{trace.path}: line {line.line} is skipped: {line.reason}")
    fleet = fleet_settings(settings, trace)
    progress.note(
        f"{len(trace.requests)} requests over {trace.span_s:,.0f} s of trace: "
        f"{trace.span_s / settings.speed:,.0f} s or more for each policy"
    )
    figures = [
        await _run_policy(msgspec.structs.replace(fleet, policy=policy), trace, progress)
        for policy in settings.policies
    ]
    first, last = figures[0], figures[-1]
    return DemoReport(
        trace=trace.path.name,
        broken_lines=[line.line for line in trace.broken],
        requests=len(trace.requests),
        span_s=trace.span_s,
        workers=fleet.workers,
        dp_size=fleet.dp_size,
        page_size=fleet.page_size,
        cache_tokens=fleet.cache_tokens,
        prefill_tokens_per_s=fleet.prefill_tokens_per_s,
        speed=fleet.speed,
        policies=figures,
        cached_gain=last.cached_tokens / first.cached_tokens if first.cached_tokens else None,
        differences=sum(policy.differences for policy in figures),
    )


def fleet_settings(settings: DemoSettings, trace: Trace) -> FleetSettings:
    """The fleet that a trace asks for, where the settings leave it open."""
    # The last bucket of arrivals stands for as long as the others.
    demand = trace.prompt_tokens / (trace.span_s + BUCKET_S) / (settings.workers * settings.dp_size)
    pages = sum(-(-(request.input_length + request.output_length) // settings.page_size) for request in trace.requests)
    return FleetSettings(
        workers=settings.workers,
        dp_size=settings.dp_size,
        cache=settings.cache,
        page_size=settings.page_size,
        cache_tokens=settings.cache_tokens or pages * settings.page_size,
        prefill_tokens_per_s=settings.prefill_tokens_per_s or HEADROOM * demand,
        speed=settings.speed,
        policy=settings.policies[0],
        port=settings.port,
    )


async def _run_policy(settings: FleetSettings, trace: Trace, progress: Progress) -> PolicyFigures:
    start = time.monotonic()
    async with running_fleet(settings) as fleet, ending_the_silent((*fleet.engines.values(), fleet.router)):
        for url, engine in fleet.engines.items():
            progress.note(f"{engine.name}: {url} (pid {engine.pid})")
        progress.note(f"router, {settings.policy}: {fleet.router.url} (pid {fleet.router.pid})")
        sources = [source for url in fleet.engines for source in await asyncio.to_thread(discover, url)]
        workers = list(dict.fromkeys(source.worker_id for source in sources))
        listener = Listener(settings.page_size)
        with Subscriber(sources, listener) as subscriber:
            await until_ready(fleet.router.url)
            await until(lambda: _not_live(subscriber, sources))
            progress.begin(settings.policy, len(trace.requests))
            outcomes = await replay(
                fleet.router.url, trace.requests, speed=settings.speed, held=listener.held, on_end=progress.advance
            )
            index = await _compare_survivors(fleet, dict(zip(fleet.engines, workers, strict=True)))
            if all(outcome.error is not None for outcome in outcomes):
                raise TransportError(f"none of {len(outcomes)} requests was answered; the first: {outcomes[0].error}")
            lost = [engine.obituary() for engine in fleet.lost]
            await until(lambda: listener.missing({(rank.worker, rank.dp_rank): rank.last_seq for rank in index}))
    return policy_figures(
        settings.policy,
        outcomes,
        workers=workers,
        speed=settings.speed,
        took_s=time.monotonic() - start,
        lost_engines=lost,
        events=event_figures(listener.payloads),
        index=index,
    )


async def _compare_survivors(fleet: Fleet, workers: Mapping[str, str]) -> list[RankComparison]:
    """Compare the index with every engine that is still there.

    Args:
        fleet: the processes.
        workers: worker ids by the engine's URL.

    Raises:
        TransportError: the router has ended, or a process that runs does not answer.
    """
    while True:
        there = {workers[url]: url for url, engine in fleet.engines.items() if engine.is_running}
        try:
            return await compare(fleet.router.url, there)
        except TransportError:
            await asyncio.sleep(NOTICE_S)
            fleet.check_router()
            if all(fleet.engines[url].is_running for url in there.values()):
                raise


def _not_live(subscriber: Subscriber, sources: Sequence[Source]) -> str | None:
    for source in sources:
        state = subscriber.state(source.worker_id, source.dp_rank)
        if state.state != "live":
            return (
                f"events of {source.worker_id} rank {source.dp_rank}: expected live, got {state.state}: {state.reason}"
            )
    return None
