"""The reports of a demo and of a simulation as tables."""

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from rich.table import Table

from kvevents.cli.standard import ResultConsole
from kvevents.simulation.families import FamilyReport
from kvevents.simulation.report import DemoReport, PolicyFigures, ReplayFigures, SimulatedFigures, SimulationReport

PIPE_WIDTH = 110
"""Columns of a table that is not printed on a terminal."""

TOLD_REASONS = 3
"""Reasons of failed requests that are told, for each policy."""

Figures = TypeVar("Figures", bound=ReplayFigures)
Rows: TypeAlias = list[tuple[str, Callable[[Figures], str]]]
"""Lines of a table: what a line shows, and its cell of one policy."""


def requests(figures: ReplayFigures) -> str:
    return f"{figures.requests:,}" + (f" ({figures.failures} failed)" if figures.failures else "")


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


DEMO: list[Rows[PolicyFigures]] = [
    [
        ("requests", requests),
        ("engines lost in the middle", lambda p: f"{len(p.lost_engines)}"),
        ("prompt tokens found cached", lambda p: f"{p.cached_share:.1%} ({p.cached_tokens:,})"),
        ("computed although some worker held them", lambda p: f"{p.recomputed_tokens:,} tokens"),
        ("time to first token, p50", lambda p: seconds(p.first_token_p50_s)),
        ("time to first token, p99", lambda p: seconds(p.first_token_p99_s)),
        ("busiest worker's prefill over the mean", lambda p: f"{p.worst_prefill:.2f}"),
    ],
    [
        ("pages announced", lambda p: f"{p.events.pages_stored:,}"),
        ("events, one a page", lambda p: f"{p.events.events_before:,}"),
        ("events sent", lambda p: f"{p.events.events_after:,} ({p.events.pages_per_event:.1f} pages a store)"),
        ("bytes, one event a page", lambda p: f"{p.events.bytes_before:,}"),
        ("bytes sent", lambda p: f"{p.events.bytes_after:,}"),
    ],
    [
        ("index against engines: blocks compared", lambda p: f"{sum(rank.blocks for rank in p.index):,}"),
        ("index against engines: differences", lambda p: f"{p.differences:,}"),
    ],
]

SIMULATION: list[Rows[SimulatedFigures]] = [
    [
        ("requests", requests),
        ("prompt tokens found cached", lambda p: f"{p.cached_share:.1%}"),
        ("expected by the router", lambda p: f"{p.expected_share:.1%}"),
        ("computed although some engine held them", lambda p: f"{p.recomputed_tokens / 1e6:,.2f} M"),
    ],
    [
        ("time to first token, p50", lambda p: seconds(p.first_token_p50_s)),
        ("time to first token, p90", lambda p: seconds(p.first_token_p90_s)),
        ("time to first token, p99", lambda p: seconds(p.first_token_p99_s)),
        ("of it waited, p99", lambda p: seconds(p.waited_p99_s)),
    ],
    [
        ("engines busy with prompts", lambda p: f"{p.busy_share:.1%}"),
        ("busiest engine's prefill over the mean", lambda p: f"{p.worst_prefill:.2f}"),
        ("found waiting in the fleet, mean / most", lambda p: f"{p.waiting_mean:.1f} / {p.waiting_most}"),
    ],
    [
        ("event batches", lambda p: f"{p.events.batches:,}" + (f" ({p.events.lost:,} lost)" if p.events.lost else "")),
        ("event bytes", lambda p: f"{p.events.bytes:,}"),
        ("blocks stored", lambda p: f"{p.events.blocks_stored:,}"),
        ("blocks removed", lambda p: f"{p.events.blocks_removed:,}"),
        ("index against engines: differences", lambda p: f"{p.differences:,}"),
    ],
]


def print_report(report: DemoReport) -> None:
    """Print a report on stdout."""
    console = _console()
    ranks = f" of {report.dp_size} ranks" if report.dp_size > 1 else ""
    title = (
        f"{report.requests} requests over {report.span_s:.0f} s, {report.workers} workers{ranks}, "
        f"{report.prefill_tokens_per_s:,.0f} prefill tokens/s, page size {report.page_size}, speed {report.speed:g}"
    )
    console.print(_table(title, "times in trace time", DEMO, report.policies))
    console.print(_comparison(report))
    for line in remarks(report):
        console.print(line, soft_wrap=True, markup=False)


def print_simulation(report: SimulationReport) -> None:
    """Print the report of a simulation on stdout."""
    console = _console()
    title = (
        f"{report.requests:,} requests over {report.span_s:,.0f} s, {report.engines} engines of "
        f"{report.prefill_tokens_per_s:,.0f} prefill tokens/s and {report.cache_tokens:,} tokens of cache, "
        f"load {report.load:.0%}, events after {report.delay_s * 1000:g} ms"
    )
    caption = (
        f"load: prompt tokens that arrive over what the fleet could compute, as if nothing were cached; arrivals "
        f"{report.arrival_speedup:.2f} times as close as in {report.trace}"
    )
    console.print(_table(title, caption, SIMULATION, report.policies))
    console.print(
        f"One endless cache for all engines, knowing of each prompt at once, would find "
        f"{report.endless_cached_share:.1%}; the fleet's caches have room for "
        f"{report.engines * report.cache_tokens / report.distinct_tokens:.0%} of the distinct prompt tokens.",
        soft_wrap=True,
    )
    for policy in report.policies:
        for line in _failures(policy):
            console.print(f"{policy.policy}: {line}", soft_wrap=True, markup=False)
    for line in _skipped(report.broken_lines):
        console.print(line, soft_wrap=True)


def print_families(report: FamilyReport) -> None:
    """Print who got which family on stdout."""
    title = f"families of prompts over {report.engines} engines, events after {report.delay_s * 1000:g} ms"
    table = Table(
        title=title,
        caption="idle: engines that got no request; cold: families computed by an engine that had not met them",
    )
    table.add_column("load", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    for name in ("idle", "cold", "engines of a family", "in flight on one", "cached", "first token p99"):
        table.add_column(name, justify="right")
    for load, together in itertools.groupby(report.figures, key=lambda figures: figures.load):
        for number, figures in enumerate(together):
            cells = (
                f"{figures.idle_engines}",
                f"{figures.cold_pairs}",
                f"up to {figures.cold_most}",
                f"up to {figures.in_flight_most}",
                f"{figures.cached_share:.1%}",
                seconds(figures.first_token_p99_s),
            )
            table.add_row("" if number else load, figures.policy, *cells)
        table.add_section()
    _console().print(table)


def remarks(report: DemoReport) -> list[str]:
    """What the tables alone do not say, one sentence each."""
    lines = []
    first, last = report.policies[0], report.policies[-1]
    if report.cached_gain is not None and len(report.policies) > 1:
        lines.append(f"{last.policy} finds {report.cached_gain:.2f} times the cached tokens of {first.policy}.")
    for policy in report.policies:
        lines += [f"{policy.policy}: {lost}" for lost in policy.lost_engines]
        lines += [f"{policy.policy}: {text}" for text in _failures(policy)]
        if not policy.kept_pace:
            lines.append(
                f"{policy.policy}: this machine does not keep pace at speed {report.speed:g} (1 % of the requests left "
                f"{policy.sent_late_p99_s:.1f} s of trace time late or more): times are too long, use a lower --speed."
            )
    lines += _skipped(report.broken_lines)
    if report.differences:
        lines.append(f"The index differs from the engines in {report.differences} blocks.")
    return lines


def _console() -> ResultConsole:
    return ResultConsole(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def _skipped(lines: Sequence[int]) -> list[str]:
    if not lines:
        return []
    return [f"Skipped {len(lines)} broken lines of the trace: {', '.join(map(str, lines))}."]


def _failures(policy: ReplayFigures) -> list[str]:
    """The most frequent reasons; when each request has one of its own, a few stand for all."""
    reasons = sorted(policy.failure_reasons.items(), key=lambda item: -item[1])
    told, others = reasons[:TOLD_REASONS], reasons[TOLD_REASONS:]
    lines = [f"{count} failed, {why}" for why, count in told]
    if others:
        lines.append(
            f"{sum(count for _, count in others)} more failed for {len(others)} other reasons (--json has all)."
        )
    return lines


def _table(title: str, caption: str, sections: Sequence[Rows[Figures]], policies: Sequence[Figures]) -> Table:
    table = Table(title=title, caption=caption)
    table.add_column("")
    for policy in policies:
        table.add_column(policy.policy, justify="right")
    for section in sections:
        for name, render in section:
            table.add_row(name, *map(render, policies))
        table.add_section()
    return table


def _comparison(report: DemoReport) -> Table:
    table = Table(title="index against engines")
    table.add_column("policy")
    table.add_column("worker/rank")
    for name in ("blocks", "missing in the index", "extra in the index"):
        table.add_column(name, justify="right")
    for policy in report.policies:
        for rank in policy.index:
            place = f"{rank.worker}/{rank.dp_rank}"
            table.add_row(policy.policy, place, f"{rank.blocks:,}", f"{rank.missing:,}", f"{rank.extra:,}")
        table.add_section()
    return table
