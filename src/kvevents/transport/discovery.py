"""Asks an engine over HTTP where it publishes its events."""

import contextlib
import http.client
import socket
import threading
import time
from typing import Annotated, NamedTuple, Self
from urllib.parse import urlsplit

import msgspec

from kvevents.errors import ConfigError, TransportError
from kvevents.index import GroupSpec
from kvevents.transport.endpoints import Endpoint
from kvevents.transport.security import ConsumerKeys
from kvevents.transport.source import Residency, Source, rank_sources

MAX_RANKS = 1_024
MAX_ANSWER_BYTES = 1 << 20

_STATUS_HINTS = {
    401: "the engine wants an API key",
    403: "the engine does not accept the API key",
    404: "is this an SGLang-compatible engine?",
}

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


class _Worker(NamedTuple):
    """An engine's HTTP address."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, worker_url: str) -> Self:
        try:
            url = urlsplit(worker_url)
            usual = {"http": 80, "https": 443}[url.scheme]
            host, port = url.hostname, url.port or usual
        except (ValueError, KeyError, AttributeError):
            host, port = None, 0
        if host is None:
            raise ConfigError(f"worker URL: expected http://host:port, got {worker_url!r}")
        return cls(url.scheme, host, port, f"{url.path.rstrip('/')}/server_info")

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.address}{self.path}"


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
    worker = _Worker.parse(worker_url)
    events = _read(worker, _get(worker, api_key, timeout_s))
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
    return _get(_Worker.parse(worker_url), api_key, timeout_s)


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


def _read(worker: _Worker, body: bytes) -> _KvEvents:
    """The `kv_events` object of an engine that publishes over ZMQ."""
    try:
        events = msgspec.json.decode(body, type=_ServerInfo).kv_events
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransportError(f"{worker}: expected JSON with an object kv_events, got: {error}") from error
    if events is None or events.publisher in {None, "", "null"}:
        raise ConfigError(
            f"{worker}: the engine publishes no KV cache events; start it with"
            ' --kv-events-config \'{"publisher": "zmq", "endpoint": "tcp://*:5557", "topic": "kv-events"}\''
        )
    if events.publisher != "zmq" or (events.endpoint or events.endpoint_port_base) is None:
        raise TransportError(
            f"{worker}: expected kv_events with publisher 'zmq' and an endpoint_port_base,"
            f" got publisher {events.publisher!r} and port {events.endpoint_port_base}"
        )
    return events


def _get(worker: _Worker, api_key: str | None, timeout_s: float) -> bytes:
    kind = http.client.HTTPSConnection if worker.scheme == "https" else http.client.HTTPConnection
    connection = kind(worker.host, worker.port, timeout=timeout_s)
    headers = {"Accept": "application/json", "Connection": "close"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    deadline = time.monotonic() + timeout_s
    cut = threading.Event()
    watchdog = None
    try:
        connection.connect()
        # Socket timeouts are per read; an answer that trickles in is cut off by the watchdog.
        watchdog = threading.Timer(deadline - time.monotonic(), _cut, [connection.sock, cut])
        watchdog.daemon = True
        watchdog.start()
        connection.request("GET", worker.path, headers=headers)
        with connection.getresponse() as response:
            body = response.read(MAX_ANSWER_BYTES + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        late = f" within {timeout_s:g} s" if isinstance(error, TimeoutError) or cut.is_set() else ""
        raise TransportError(f"{worker}: no answer{late}: {str(error) or type(error).__name__}") from error
    finally:
        if watchdog is not None:
            watchdog.cancel()
        connection.close()
    if cut.is_set():
        raise TransportError(f"{worker}: the answer was not complete within {timeout_s:g} s")
    if response.status != http.client.OK:
        hint = _STATUS_HINTS.get(response.status, "redirects are not followed" if response.status < 400 else "")
        raise TransportError(
            f"{worker}: expected status 200, got {response.status} {response.reason}{hint and '; '}{hint}"
        )
    if len(body) > MAX_ANSWER_BYTES:
        raise TransportError(f"{worker}: expected an answer of at most {MAX_ANSWER_BYTES} bytes")
    return body


def _cut(sock: socket.socket, cut: threading.Event) -> None:
    cut.set()
    with contextlib.suppress(OSError):  # closed meanwhile: the answer was complete
        sock.shutdown(socket.SHUT_RDWR)
