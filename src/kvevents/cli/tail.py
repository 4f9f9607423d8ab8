"""`kvevents tail`: the live stream of workers' events, readable."""

import itertools
import select
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvevents.cli import lines, records
from kvevents.cli.key_files import consumer_keys
from kvevents.cli.options import Count
from kvevents.cli.output import Json, note, print_json
from kvevents.cli.selection import Kind, Selection, Tier
from kvevents.cli.sources import sources_of
from kvevents.cli.stream import EventStream
from kvevents.cli.token_text import TokenText
from kvevents.errors import ConfigError
from kvevents.transport import Subscriber


def tail(
    *urls: str,
    worker: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    rank: Annotated[tuple[int, ...], Parameter(negative=())] = (),
    tier: Annotated[tuple[Tier, ...], Parameter(negative=())] = (),
    kind: Annotated[tuple[Kind, ...], Parameter(negative=())] = (),
    tokenizer: Path | None = None,
    replay: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    topic: str = "",
    bind: bool = False,
    keys: Path | None = None,
    limit: Count | None = None,
    json: Json = False,
) -> None:
    """Print the KV cache events of workers as they come, one line each, and every change of their state.

    Example: `kvevents tail http://127.0.0.1:30000`

    Example: `kvevents tail a=http://10.0.0.5:30000 b=http://10.0.0.6:30000 --kind removed --tier GPU --worker a`

    Example: `kvevents tail tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558 --limit 100 --json`

    Salts are shown as pseudonyms that hold for one run. --worker, --rank, --tier and --kind can be given several times.

    Args:
        urls: Base URLs of workers, whose server info names their sockets, or ZMQ sockets themselves (tcp:// or ipc://).
            NAME=URL gives a worker a name; by default its address is its name.
        worker: Only this worker, by its name.
        rank: Only this data-parallel rank.
        tier: Only stores and removals in this tier; a clear is of all tiers.
        kind: Only events of this kind; state is what is no event: changed states, skipped events, refused batches.
        tokenizer: Directory with a tokenizer.json: token ids are shown as text. `bytes` is the simulated engine's.
        replay: The ZMQ socket that repeats batches, to fetch what was missed; once for each ZMQ socket among the URLs.
        topic: Of ZMQ sockets: only topics that begin with this.
        bind: Bind the ZMQ sockets, for publishers that connect.
        keys: A file of `kvevents keys` that ends in .key_secret, of a consumer that the publishers list.
        limit: Stop after this many events.
        json: Print one JSON object a line, every field of an event in it.
    """
    text = None if tokenizer is None else TokenText(tokenizer)
    sources = sources_of(urls, replay=replay, topic=topic, bind=bind, keys=consumer_keys(keys))
    _check_workers(worker, {source.worker_id for source in sources})
    selection = Selection(workers=worker, ranks=rank, tiers=tier, kinds=kind)
    stream = EventStream()
    with Subscriber(sources, stream, on_state=stream.on_state) as subscriber:
        for source in sources:
            note(f"following {source.worker_id} at {subscriber.endpoint(source.worker_id, source.dp_rank)}")
        try:
            _print_stream(stream, selection, text, limit, json=json)
        finally:
            stream.close()


def _check_workers(wanted: Collection[str], known: Collection[str]) -> None:
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--worker: expected one of {', '.join(sorted(known))}, got {name}")


def _print_stream(
    stream: EventStream, selection: Selection, text: TokenText | None, limit: int | None, *, json: bool
) -> None:
    left = limit
    while left is None or left > 0:
        came = stream.next()
        if came is None:
            _check_reader()
            continue
        item = selection.of(came)
        if item is None:
            continue
        found = records.event_records(item, text) if json else lines.event_lines(item, text)
        events = list(itertools.islice(found, left))
        for shown in (*events, *(records.other_records(item) if json else lines.other_lines(item))):
            if isinstance(shown, str):
                print(shown, flush=True)
            else:
                print_json(shown)
        left = None if left is None else left - len(events)


def _check_reader() -> None:
    """Notice, while nothing comes, that whoever reads our output has gone.

    Raises:
        BrokenPipeError: it has.
    """
    poll = select.poll()
    poll.register(sys.stdout, 0)
    if any(flags & select.POLLERR for _, flags in poll.poll(0)):
        raise BrokenPipeError("the reader of stdout has gone")
