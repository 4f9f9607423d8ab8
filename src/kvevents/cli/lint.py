"""`kvevents lint`: a stream against what its consumers may rely on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvevents.cli.damage import note_damage
from kvevents.cli.key_files import consumer_keys
from kvevents.cli.options import Count, Rate
from kvevents.cli.output import Json, note, print_json
from kvevents.cli.pace import Pace, told_to_end
from kvevents.errors import ConfigError, TransportError
from kvevents.lint import CODES, Finding, LintReport, Severity, StreamFacts, StreamLinter, lint_live
from kvevents.transport import CaptureReader, Source, State, discover

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_TICK_RECORDS = 256


def lint(
    what: str,
    /,
    *,
    duration: Rate = 30.0,
    fail_on: Literal["error", "warning", "info"] = "warning",
    ignore: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    capacity_blocks: Count | None = None,
    seed: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    salt: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    replay: str | None = None,
    topic: str = "",
    bind: Annotated[bool, Parameter(negative=())] = False,
    keys: Path | None = None,
    json: Json = False,
) -> int:
    """Check a stream of KV cache events: a capture, or a running engine for a while.

    Every finding has a stable code, which docs/lint.md explains. Exit code 1 if there are any of the severity
    --fail-on or worse.

    Example: `kvevents lint captures`

    Example: `kvevents lint http://127.0.0.1:30000 --duration 60`

    Example: `kvevents lint tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558 --topic kv-events --ignore KV501`

    Args:
        what: A file or folder of `kvevents record` (or a recorded stream: JSON lines, also in a tar archive), a
            worker's base URL, or a ZMQ socket (tcp:// or ipc://).
        duration: Seconds to follow a running engine.
        fail_on: The mildest severity that makes the answer no.
        ignore: A code to leave out; once for each.
        capacity_blocks: Blocks that the engine's GPU cache can hold: finds removals that never came.
        seed: A value of PYTHONHASHSEED to try; once for each.
        salt: A salt that is not on the wire (vLLM before 0.17); once for each.
        replay: Of a ZMQ socket: the one that repeats batches.
        topic: Of a ZMQ socket: only topics that begin with this.
        bind: Bind the ZMQ socket, for a publisher that connects.
        keys: A file of `kvevents keys` that ends in .key_secret, of a consumer that the publisher lists.
        json: Print findings and streams as one JSON object.
    """
    unknown = [code for code in ignore if code not in CODES]
    if unknown:
        raise ConfigError(f"--ignore: expected a code of docs/lint.md, KV101 to {max(CODES)}, got {unknown[0]!r}")
    is_live = "://" in what
    reader = None if is_live else CaptureReader(what)
    # Whether hashes can be checked stands in the head of the file, which is read with its first record.
    linter = StreamLinter(
        capacity_blocks=capacity_blocks,
        seeds=seed,
        salts=salt,
        has_hashes=reader is None or not _is_pseudonymous(reader),
    )
    if reader is None:
        sources = _sources(what, replay=replay, topic=topic, bind=bind, keys=keys)
        note(f"following {len(sources)} sources for {duration:g} s; Ctrl-C ends before")
        with told_to_end() as ended:
            states = lint_live(sources, linter, seconds=duration, ended=ended)
        if all(state.state is State.CONNECTING for state in states.values()):
            raise TransportError(f"nothing was reached: {next(iter(states.values())).reason}")
    else:
        _read(reader, linter)
    report = linter.report()
    if not (report.findings or any(stream.batches for stream in report.streams)):
        if reader is not None:
            raise ConfigError(f"{what}: expected a capture with batches in it, found none")
        note("nothing came, so nothing was checked: follow it for longer, or while it has requests")
    report = _without(report, ignore)
    if json:
        print_json(report)
    else:
        _print(report)
    return 1 if report.at_least(Severity(fail_on)) else 0


def _is_pseudonymous(reader: CaptureReader) -> bool:
    next(iter(reader), None)
    return any(head.privacy.hashes or head.privacy.tokens for head in reader.heads)


def _read(reader: CaptureReader, linter: StreamLinter) -> None:
    read = 0
    pace = Pace(lambda _since_s, seconds: f"{seconds:.0f} s: {read:,} records")
    for record in reader.once():
        linter.feed(record)
        read += 1
        if read % _TICK_RECORDS == 0:
            pace.tick()
    note_damage(reader)


def _sources(what: str, *, replay: str | None, topic: str, bind: bool, keys: Path | None) -> Sequence[Source]:
    if what.startswith(("http://", "https://")):
        if replay or topic or bind:
            raise ConfigError(f"{what}: its server info says what --replay, --topic and --bind would; leave them out")
        return discover(what, keys=consumer_keys(keys))
    return [Source(what, what, replay_endpoint=replay, topic=topic, bind=bind or None, keys=consumer_keys(keys))]


def _without(report: LintReport, ignore: Sequence[str]) -> LintReport:
    return LintReport([one for one in report.findings if one.code not in ignore], report.streams)


def _print(report: LintReport) -> None:
    console = Console(highlight=False)
    for facts in report.streams:
        console.print(Text(_stream(facts)))
    if not report.findings:
        console.print("no findings")
        return
    table = Table("code", "severity", "stream", "what", "first at", box=None, pad_edge=False)
    for finding in report.findings:
        what = Text(f"{finding.title} ({finding.count:,})\n")
        what.append(f"{finding.detail}\n" if finding.detail else "").append(finding.remedy, style="dim")
        severity = Text(finding.severity, style=_COLOURS[finding.severity])
        table.add_row(finding.code, severity, _name(finding.worker, finding.dp_rank), what, _place(finding))
    console.print(table)


def _stream(facts: StreamFacts) -> str:
    hashes = facts.scheme or "not recognised"
    if facts.hash_seed is not None:
        hashes += f" with the seed {facts.hash_seed!r}"
    return (
        f"{_name(facts.worker, facts.dp_rank)}: {facts.batches:,} batches, {facts.events:,} events, "
        f"{facts.stored_blocks:,} blocks stored, {facts.removed_blocks:,} removed, {facts.clears:,} clears, "
        f"{facts.held_blocks:,} held; written as {facts.dialect or 'nothing known'} ({facts.engine or 'no store'}); "
        f"hashes: {hashes}"
    )


def _place(finding: Finding) -> str:
    first = finding.first
    where = f"batch {first.batch}" if first.sequence is None else f"number {first.sequence}"
    where += "" if first.offset is None else f", byte {first.offset}"
    return where + ("" if first.block is None else f", block {first.block[:8]}")


def _name(worker: str, dp_rank: int | None) -> str:
    return worker if dp_rank is None else f"{worker}/{dp_rank}"
