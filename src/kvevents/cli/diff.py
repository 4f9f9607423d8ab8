"""`kvevents diff`: what an index believes against what an engine holds."""

import os
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kvevents.cli.damage import note_damage
from kvevents.cli.key_files import consumer_keys
from kvevents.cli.options import Rate
from kvevents.cli.output import Json, note, print_json
from kvevents.diff import (
    DiffReport,
    RankDiff,
    Side,
    capture_side,
    compare,
    engine_side,
    index_side,
    read_index,
)
from kvevents.errors import ConfigError
from kvevents.transport import CaptureReader, ConsumerKeys
from kvevents.transport.http_fetch import Address

_PAUSE_S = 0.1


def diff(
    index: str,
    engine: str,
    /,
    *,
    worker: str | None = None,
    wait: Rate = 5.0,
    keys: Path | None = None,
    json: Json = False,
) -> int:
    """Compare what an index believes with what an engine holds, by tier and prefix. Exit code 1 if they differ.

    A running engine says itself what it holds, if it can (`/holdings`); of any other its events are read from their
    beginning. Both sides are asked again until they are of the same moment, up to --wait seconds; from a capture, the
    batches count that the index has seen.

    The router's admin token comes from KVEVENTS_ADMIN_TOKEN, the engine's key from KVEVENTS_ENGINE_KEY.

    Example: `kvevents diff http://127.0.0.1:8080 http://127.0.0.1:30000`

    Example: `curl -s http://127.0.0.1:8080/snapshot -o index.bin; kvevents diff index.bin captures --worker worker-1`

    Args:
        index: The base URL of `kvevents serve`, or a file with the answer of its `GET /snapshot`.
        engine: The base URL of an engine, or a file or folder of `kvevents record --keep-hashes`.
        worker: The engine's name in the index; by default its host:port, or its name in the capture.
        wait: Seconds to wait for both sides to be of the same moment.
        keys: A file of `kvevents keys` that ends in .key_secret, of a consumer that the engine lists.
        json: Print the comparison as one JSON object.
    """
    if engine.startswith(("http://", "https://")):
        report = _running(index, engine, worker or Address.parse(engine).address, wait, consumer_keys(keys))
    else:
        believed = _index(index)
        until = {key: blocks.sequence for key, blocks in believed.items()}
        reader = CaptureReader(engine)
        held = capture_side(reader, until=until, worker=worker)
        note_damage(reader)
        if not held:
            raise ConfigError(f"{engine}: expected a capture with batches in it, found none")
        report = compare(believed, held)
    if report.unknown_workers:
        known = ", ".join(sorted({name for name, _ in _index(index)})) or "none"
        raise ConfigError(
            f"{index}: knows no worker {', '.join(report.unknown_workers)} (it knows {known}): "
            "name the engine with --worker"
        )
    if json:
        print_json(report)
    else:
        _print(report)
    return 0 if report.is_equal else 1


def _index(where: str) -> Side:
    return index_side(read_index(where, token=os.environ.get("KVEVENTS_ADMIN_TOKEN")))


def _running(index: str, engine: str, worker: str, wait_s: float, keys: ConsumerKeys | None) -> DiffReport:
    end = time.monotonic() + wait_s
    while True:
        held = engine_side(engine, worker=worker, api_key=os.environ.get("KVEVENTS_ENGINE_KEY"), keys=keys)
        report = compare(_index(index), held)
        if report.is_equal or all(rank.is_same_moment for rank in report.ranks) or time.monotonic() > end:
            return report
        time.sleep(_PAUSE_S)


def _print(report: DiffReport) -> None:
    console = Console(highlight=False)
    table = Table("worker", "tier", "both", "stale", "missing", box=None, pad_edge=False)
    for rank in report.ranks:
        if not rank.is_same_moment:
            note(
                f"{_name(rank)}: the index is at batch {rank.index_sequence}, the engine at {rank.engine_sequence}: "
                "some of what differs may be on its way"
            )
        for tier in rank.tiers:
            if tier.both or tier.stale or tier.missing:
                table.add_row(_name(rank), tier.tier, f"{tier.both:,}", f"{tier.stale:,}", f"{tier.missing:,}")
    console.print(table)
    for rank in report.ranks:
        for branch in rank.branches:
            where = "of a prefix that is not known" if branch.root is None else f"of prefix {branch.root}"
            depth = "" if branch.depth is None else f", {branch.depth} blocks deep"
            console.print(
                f"{_name(rank)} {branch.tier}: {branch.blocks:,} {branch.side} from block {branch.first} {where}{depth}"
            )
    console.print("equal" if report.is_equal else "stale: in the index alone; missing: in the engine alone")


def _name(rank: RankDiff) -> str:
    return f"{rank.worker}/{rank.dp_rank}"
