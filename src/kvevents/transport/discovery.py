"""Asks an engine over HTTP where it publishes its events."""

from typing import Annotated

import msgspec

from kvevents.errors import ConfigError, TransportError
from kvevents.index import GroupSpec
from kvevents.transport.endpoints import Endpoint
from kvevents.transport.http_fetch import Address, fetch
from kvevents.transport.security import ConsumerKeys
from kvevents.transport.source import Residency, Source, rank_sources

MAX_RANKS = 1_024
_PATH = "/server_info"

_Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class _KvEvents(msgspec.Struct):
    """The `kv_events` object of `/server_info`."""

    publisher: str | None = None
    endpoint: str | None = None  # in place of host and port where the engine publishes over ipc (kvevents' own)
    endpoint_host: str | None = None
    endpoint_port_base: _Port | None = None
    topic: str | None = None
    block_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    dp_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)] | None = None
    replay_endpoint: str | None = None
    replay_endpoint_port_base: _Port | None = None
    groups: tuple[GroupSpec, ...] | None = None  # kvevents' own
    snapshot: bool | None = None  # kvevents' own


class _ServerInfo(msgspec.Struct):
    kv_events: _KvEvents | None = None


def discover(
    worker_url: str,
    *,
    worker_id: str | None = None,
    bind: bool | None = None,
    residency: Residency = "counted",
    api_key: str | None = None,
    timeout_s: float = 5.0,
    keys: ConsumerKeys | None = None,
) -> list[Source]:
    """The sources of an SGLang-compatible engine, one per data-parallel rank, from its `GET /server_info`.

    A wildcard host in the answer is replaced by the worker's own. No redirect is followed and no proxy
    used; the answer is limited to 1 MiB and the whole exchange to `timeout_s` (a name server's time aside).

    Args:
        worker_url: `http://host:port` or `https://host:port`, with a path prefix if the engine has one.
        worker_id: the sources' worker id; the URL's `host:port` if None.
        bind: passed to the sources (see `Source`).
        residency: passed to the sources.
        api_key: sent as bearer token.
        timeout_s: seconds.
        keys: passed to the sources; the exchange over HTTP is none of their business.

    Raises:
        ConfigError: the URL is none, or the engine publishes no events (the message says how to switch them on).
        TransportError: the engine cannot be reached, or its answer is not a server info.
    """
    worker = Address.parse(worker_url)
    events = _read(worker, _ask(worker, api_key, timeout_s))
    live, replay = _endpoints(events, worker.host)
    return rank_sources(
        worker_id or worker.address,
        live,
        events.dp_size or 1,
        replay_endpoint=replay,
        snapshot=events.snapshot if replay is not None else None,
        topic=events.topic or "",
        bind=bind,
        block_size=events.block_size,
        residency=residency,
        groups=events.groups or (),
        keys=keys,
    )


def fetch_server_info(worker_url: str, *, api_key: str | None = None, timeout_s: float = 5.0) -> bytes:
    """The body of an engine's `GET /server_info`, as it came, under the limits of `discover`.

    Raises:
        ConfigError: the URL is none.
        TransportError: the engine cannot be reached, or does not answer with status 200.
    """
    return _ask(Address.parse(worker_url), api_key, timeout_s)


def _endpoints(events: _KvEvents, worker_host: str) -> tuple[str, str | None]:
    """Live and replay endpoint of rank 0."""
    if events.endpoint is not None:
        return events.endpoint, events.replay_endpoint
    assert events.endpoint_port_base is not None
    host = (events.endpoint_host or "*").removeprefix("[").removesuffix("]")
    live = Endpoint("tcp", host, events.endpoint_port_base, "")
    if live.is_wildcard:
        live = live._replace(host=worker_host)
    replay = events.replay_endpoint_port_base
    return str(live), None if replay is None else str(live._replace(port=replay))


def _ask(worker: Address, api_key: str | None, timeout_s: float) -> bytes:
    return fetch(f"{worker}{_PATH}", token=api_key, timeout_s=timeout_s)


def _read(worker: Address, body: bytes) -> _KvEvents:
    """The `kv_events` object of an engine that publishes over ZMQ."""
    try:
        events = msgspec.json.decode(body, type=_ServerInfo).kv_events
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransportError(f"{worker}{_PATH}: expected JSON with an object kv_events, got: {error}") from error
    if events is None or events.publisher in {None, "", "null"}:
        raise ConfigError(
            f"{worker}{_PATH}: the engine publishes no KV cache events; start it with"
            ' --kv-events-config \'{"publisher": "zmq", "endpoint": "tcp://*:5557", "topic": "kv-events"}\''
        )
    if events.publisher != "zmq" or (events.endpoint or events.endpoint_port_base) is None:
        raise TransportError(
            f"{worker}{_PATH}: expected kv_events with publisher 'zmq' and an endpoint_port_base,"
            f" got publisher {events.publisher!r} and port {events.endpoint_port_base}"
        )
    return events
