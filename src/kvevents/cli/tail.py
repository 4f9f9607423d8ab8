"""`kvevents tail`: a worker's live stream of events, readable."""

import itertools
import select
import sys
from pathlib import Path

from kvevents.cli import lines, records
from kvevents.cli.key_files import consumer_keys
from kvevents.cli.options import Count
from kvevents.cli.output import Json, note, print_json
from kvevents.cli.stream import EventStream
from kvevents.errors import ConfigError
from kvevents.transport import ConsumerKeys, Source, Subscriber, discover


def tail(
    url: str,
    /,
    *,
    replay: str | None = None,
    topic: str = "",
    bind: bool = False,
    keys: Path | None = None,
    limit: Count | None = None,
    json: Json = False,
) -> None:
    """Print the KV cache events of a worker as they come, one line each, and every change of its state.

    Example: `kvevents tail http://127.0.0.1:30000`

    Example: `kvevents tail tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558 --limit 100 --json`

    Salts are shown as pseudonyms that hold for one run.

    Args:
        url: A worker's base URL, whose server info names its sockets, or a ZMQ socket itself (tcp:// or ipc://).
        replay: The ZMQ socket that repeats batches, to fetch what was missed.
        topic: Only topics that begin with this.
        bind: Bind the socket, for a publisher that connects.
        keys: A file of `kvevents keys` that ends in .key_secret, of a consumer that the publisher lists.
        limit: Stop after this many events.
        json: Print one JSON object a line, every field of an event in it.
    """
    sources = _sources(url, replay=replay, topic=topic, bind=bind, keys=consumer_keys(keys))
    stream = EventStream()
    with Subscriber(sources, stream, on_state=stream.on_state) as subscriber:
        for source in sources:
            note(f"following {source.worker_id} at {subscriber.endpoint(source.worker_id, source.dp_rank)}")
        try:
            _print_stream(stream, limit, json=json)
        finally:
            stream.close()


def _sources(url: str, *, replay: str | None, topic: str, bind: bool, keys: ConsumerKeys | None) -> list[Source]:
    if not url.startswith(("http://", "https://")):
        return [Source(url, url, replay_endpoint=replay, topic=topic, bind=bind or None, keys=keys)]
    if replay or topic or bind:
        raise ConfigError(f"{url}: its server info says what --replay, --topic and --bind would; leave them out")
    return discover(url, keys=keys)


def _print_stream(stream: EventStream, limit: int | None, *, json: bool) -> None:
    left = limit
    while left is None or left > 0:
        item = stream.next()
        if item is None:
            _check_reader()
            continue
        events = list(itertools.islice(records.event_records(item) if json else lines.event_lines(item), left))
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
