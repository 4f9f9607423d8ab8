"""`kvevents top`: engines or a router, live, on the whole terminal."""

import contextlib
import itertools
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from kvevents.cli.key_files import consumer_keys
from kvevents.cli.lines import event_lines
from kvevents.cli.options import Count, Rate
from kvevents.cli.output import Json, print_json
from kvevents.cli.pace import told_to_end
from kvevents.cli.sources import sources_of
from kvevents.cli.stream import Batch, Origin
from kvevents.errors import ConfigError
from kvevents.events import KVEventBatch
from kvevents.top import EngineFeed, Feed, RouterFeed, Trend


def top(
    *urls: str,
    router: str | None = None,
    every: Rate = 1.0,
    replay: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    topic: str = "",
    bind: Annotated[bool, Parameter(negative=())] = False,
    keys: Path | None = None,
    count: Count | None = None,
    json: Json = False,
) -> None:
    """Show what engines hold and tell, as it changes: states, blocks by tier, rates, coalescing, gaps, the last events.

    Keys: s sorts by the next column, r turns the order round, f filters, p pauses, h helps, q quits. It needs the
    extra: pip install 'kvevents[top]'. With --json it prints a line for each look instead, and needs none.

    The router's admin token comes from KVEVENTS_ADMIN_TOKEN.

    Example: `kvevents top http://127.0.0.1:30000 http://127.0.0.1:30001`

    Example: `kvevents top --router http://127.0.0.1:8080`

    Example: `kvevents top http://127.0.0.1:30000 --json --count 10`

    Args:
        urls: Base URLs of engines, whose server info names their sockets, or ZMQ sockets themselves (tcp:// or ipc://).
            NAME=URL gives an engine a name; by default its address is its name.
        router: Base URL of a `kvevents serve`, in place of engines: its workers as it sees them.
        every: Seconds between two looks.
        replay: The ZMQ socket that repeats batches, to fetch what was missed; once for each ZMQ socket among the URLs.
        topic: Of ZMQ sockets: only topics that begin with this.
        bind: Bind the ZMQ sockets, for publishers that connect.
        keys: A file of `kvevents keys` that ends in .key_secret, of a consumer that the engines list.
        count: With --json: stop after so many looks.
        json: Print one JSON object for each look.
    """
    if router is not None and urls:
        raise ConfigError("expected engines or --router, got both")
    if not json and find_spec("textual") is None:
        raise ConfigError("textual is missing to draw on the terminal: pip install 'kvevents[top]', or use --json")
    if not json and count is not None:
        raise ConfigError("--count: expected --json with it")
    feed: Feed
    if router is not None:
        feed = RouterFeed(router, token=os.environ.get("KVEVENTS_ADMIN_TOKEN"))
        feed.look()  # what cannot be reached is said before the screen is taken
    else:
        sources = sources_of(urls, replay=replay, topic=topic, bind=bind, keys=consumer_keys(keys))
        feed = EngineFeed(sources, _lines)
    with contextlib.closing(feed):
        if json:
            _print(feed, every, count)
            return
        from kvevents.top.view import TopApp  # noqa: PLC0415 - an extra

        TopApp(feed, interval_s=every).run()


def _lines(came: float, worker: str, rank: int | None, seq: int | None, batch: KVEventBatch) -> Iterator[str]:
    return event_lines(Batch(Origin(came, worker, rank, seq), batch))


def _print(feed: Feed, every: float, count: int | None) -> None:
    trend = Trend()
    with told_to_end() as ended:
        for look in itertools.count(1):
            picture = feed.look()
            rows = [
                {**msgspec.structs.asdict(one.row), **_rates(one.events_per_s, one.blocks_per_s, one.blocks_per_event)}
                for one in trend.of(picture)
            ]
            print_json({"workers": rows, "news": picture.news})
            if look == count or ended.wait(every):
                return


def _rates(events: float, blocks: float, per_event: float | None) -> dict[str, float | None]:
    return {"events_per_s": events, "blocks_per_s": blocks, "blocks_per_event": per_event}
