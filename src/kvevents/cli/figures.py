"""The report of a demo as tables."""

import sys
from collections.abc import Callable

from rich.table import Table

from kvevents.cli.standard import ResultConsole
from kvevents.simulation.report import DemoReport, PolicyFigures

PIPE_WIDTH = 110
"""Columns of a table that is not printed on a terminal."""

TOLD_REASONS = 3
"""Reasons of failed requests that are told, for each policy."""

Row = tuple[str, Callable[[PolicyFigures], str]]

ROWS: list[list[Row]] = [
    [
        ("requests", lambda p: f"{p.requests}" + (f" ({p.failures} failed)" if p.failures else "")),
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


def print_report(report: DemoReport) -> None:
    """Print a report on stdout."""
    console = ResultConsole(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    console.print(_figures(report))
    console.print(_comparison(report))
    for line in remarks(report):
        console.print(line, soft_wrap=True, markup=False)


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


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
    if report.broken_lines:
        numbers = ", ".join(map(str, report.broken_lines))
        lines.append(f"Skipped {len(report.broken_lines)} broken lines of the trace: {numbers}.")
    if report.differences:
        lines.append(f"The index differs from the engines in {report.differences} blocks.")
    return lines


def _failures(policy: PolicyFigures) -> list[str]:
    """The most frequent reasons; when each request has one of its own, a few stand for all."""
    reasons = sorted(policy.failure_reasons.items(), key=lambda item: -item[1])
    told, others = reasons[:TOLD_REASONS], reasons[TOLD_REASONS:]
    lines = [f"{count} failed, {why}" for why, count in told]
    if others:
        lines.append(
            f"{sum(count for _, count in others)} more failed for {len(others)} other reasons (--json has all)."
        )
    return lines


def _figures(report: DemoReport) -> Table:
    ranks = f" of {report.dp_size} ranks" if report.dp_size > 1 else ""
    table = Table(
        title=f"{report.requests} requests over {report.span_s:.0f} s, {report.workers} workers{ranks}, "
        f"{report.prefill_tokens_per_s:,.0f} prefill tokens/s, page size {report.page_size}, speed {report.speed:g}",
        caption="times in trace time",
    )
    table.add_column("")
    for policy in report.policies:
        table.add_column(policy.policy, justify="right")
    for section in ROWS:
        for name, render in section:
            table.add_row(name, *map(render, report.policies))
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
