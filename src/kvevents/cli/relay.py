"""`kvevents relay`: beside an engine, its events coalesced."""

import contextlib
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from kvevents.cli.duration import Duration
from kvevents.cli.key_files import consumer_keys, publisher_keys
from kvevents.cli.options import Count, Rate
from kvevents.cli.output import Json, note, print_json
from kvevents.cli.pace import told_to_end
from kvevents.coalescing import Level
from kvevents.errors import ConfigError, TransportError
from kvevents.transport import Source, SourceState, discover, rank_sources
from kvevents.transport.relay import Relay, RelaySettings, RelayStats, ServerInfo, StreamStats

_DEFAULTS = RelaySettings()
_LOOK_S = 1.0
_HTTP = ("http://", "https://")


def relay(
    *workers: str,
    endpoint: str = "tcp://127.0.0.1:*",
    replay_endpoint: str = "tcp://127.0.0.1:*",
    http: str = "127.0.0.1:0",
    window: Duration = _DEFAULTS.window_s,
    coalesce: Level = _DEFAULTS.coalesce,
    dialect: Literal["auto", "sglang", "sglang-array", "vllm", "vllm-array"] = _DEFAULTS.dialect,
    log: Path | None = None,
    topic: str | None = None,
    source_replay: str | None = None,
    source_topic: str = "",
    source_ranks: Count = 1,
    bind: bool = False,
    keys: Path | None = None,
    source_keys: Path | None = None,
    replay_mib: Rate = _DEFAULTS.replay_bytes / 2**20,
    replay_time: Duration = _DEFAULTS.replay_s,
    every: Duration = 10.0,
    json: Json = False,
) -> None:
    """Follow engines' events and publish them anew, coalesced: consumers read the relay as if it were the engine.

    Once it listens it prints one line of JSON with the `url` of each worker, whose /server_info is the engine's with
    the relay's sockets in it, and its `kv_events`; /stats tells the counts. Then it tells on stderr what goes through,
    and every change of a source's state. SIGINT and SIGTERM send what waits and stop it.

    Example: `kvevents relay http://127.0.0.1:30000 --log /var/lib/kvevents --window 20ms`

    Example: `kvevents relay tcp://127.0.0.1:5557 --bind --source-replay tcp://127.0.0.1:5558`

    Args:
        workers: Base URLs of engines, whose server info names their sockets, or the ZMQ socket of one engine itself.
        endpoint: Where the first engine's rank 0 is published. Further ranks and engines take the next ports, or with
            port * or 0 free ones, which the log remembers.
        replay_endpoint: The same for the sockets that repeat batches.
        http: Where /server_info is served, host:port. With port 0 a free one, which changes with each start.
        window: How long an event waits for others, such as 20ms.
        coalesce: How far the events of a window are merged: off, adjacent, chain or compact.
        dialect: How they are written; auto is as the engine does.
        log: A folder for what the relay needs to go on after a restart. Without it, a restart is a new beginning.
        topic: What batches are published under; by default the engine's topic.
        source_replay: The socket that repeats the engine's batches, if it is given by its socket.
        source_topic: The engine's topic, if it is given by its socket.
        source_ranks: Its data-parallel ranks, if it is given by its socket.
        bind: Bind the engine's sockets: for a vLLM whose endpoint names a host, which connects.
        keys: A publisher's file of `kvevents keys` that ends in .key_secret: only consumers in the folder clients
            beside it can read.
        source_keys: A consumer's such file, to follow engines that publish with keys.
        replay_mib: Recent batches that are kept as they were sent; what older ones say is kept in compacted form.
        replay_time: Those that are older are compacted too, such as 10m.
        every: How often rates are told.
        json: Rates and states are JSON lines on stdout.
    """
    if not workers:
        raise ConfigError("relay: expected the URL or the socket of at least one engine; see --help")
    settings = RelaySettings(
        window_s=window,
        coalesce=coalesce,
        dialect=dialect,
        replay_bytes=int(replay_mib * 2**20),
        replay_s=replay_time,
    )
    ours, theirs = publisher_keys(keys), consumer_keys(source_keys)
    tell = _tell_json if json else _tell
    with contextlib.ExitStack() as opened:
        stopped = opened.enter_context(told_to_end())
        found = {
            worker: _sources(worker, stopped, replay=source_replay, topic=source_topic, ranks=source_ranks, bind=bind)
            for worker in workers
        }
        if stopped.is_set():
            return
        sources = [replace(source, keys=theirs) for of_worker in found.values() for source in of_worker]
        urls = {of_worker[0].worker_id: url for url, of_worker in found.items() if url.startswith(_HTTP)}
        running = opened.enter_context(
            Relay(
                sources,
                endpoint,
                replay_listen=replay_endpoint,
                topic=topic,
                log=log,
                settings=settings,
                on_state=tell,
                keys=ours,
            )
        )
        info = opened.enter_context(ServerInfo(running, urls, listen=http))
        print_json(
            {
                "url": info.url,
                "workers": [
                    {"worker_id": name, "url": info.url_of(name), "kv_events": running.describe(name)}
                    for name in running.worker_ids
                ],
            }
        )
        if log is None:
            note("no --log: after a restart consumers have to begin anew")
        before, told = StreamStats(), time.monotonic()
        while not stopped.wait(min(every, _LOOK_S)):
            if running.failure is not None:
                raise TransportError(f"nothing is published any more: {running.failure}") from running.failure
            if (now := time.monotonic()) >= told + every:
                before, told = _tell_rates(running.stats(), before, now - told, json=json), now


def _sources(
    worker: str, stopped: threading.Event, *, replay: str | None, topic: str, ranks: int, bind: bool
) -> list[Source]:
    if not worker.startswith(_HTTP):
        return rank_sources(worker, worker, ranks, replay_endpoint=replay, topic=topic, bind=bind or None)
    if replay or topic or ranks > 1:
        raise ConfigError(
            f"{worker}: its server info says what --source-replay, -topic and -ranks would; leave them out"
        )
    return _discover(worker, bind, stopped)


def _discover(worker: str, bind: bool, stopped: threading.Event) -> list[Source]:
    """The engine's sources; waits for an engine that does not answer yet, since it takes minutes to load a model."""
    told = ""
    while not stopped.is_set():
        try:
            return discover(worker, bind=bind or None)
        except TransportError as error:
            if str(error) != told:
                note(f"{error}; waiting for it")
            told = str(error)
        stopped.wait(_LOOK_S)
    return []


def _tell(worker_id: str, dp_rank: int | None, state: SourceState) -> None:
    rank = "" if dp_rank is None else f"/{dp_rank}"
    note(f"{worker_id}{rank} is {state.state}: {state.reason}")


def _tell_json(worker_id: str, dp_rank: int | None, state: SourceState) -> None:
    print_json({"worker_id": worker_id, "dp_rank": dp_rank, "state": state.state, "reason": state.reason})


def _tell_rates(stats: RelayStats, before: StreamStats, seconds: float, *, json: bool) -> StreamStats:
    total = stats.total()
    if json:
        print_json(stats)
        return total
    batches, sent = total.received - before.received, total.sent - before.sent
    size, sent_size = total.received_bytes - before.received_bytes, total.sent_bytes - before.sent_bytes
    if batches or sent:
        fewer = (
            f"{batches / sent:.1f} times fewer batches, {size / sent_size:.1f} times fewer bytes"
            if sent
            else "none out"
        )
        note(f"{batches / seconds:.0f} batches/s and {size / seconds / 1e6:.2f} MB/s in; {fewer}")
    for name in ("refused", "gaps", "missing", "unread_fields", "waits", "log_errors"):
        if new := getattr(total, name) - getattr(before, name):
            note(f"{name.replace('_', ' ')}: {new} more, {getattr(total, name)} in all")
    return total
