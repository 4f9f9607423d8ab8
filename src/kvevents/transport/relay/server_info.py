"""Tells over HTTP where a relay publishes: the engine's `/server_info`, with the relay's sockets in it."""

import contextlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import quote, urlsplit

import msgspec

from kvevents.errors import ConfigError, KVEventsError, TransportError
from kvevents.transport.discovery import fetch_server_info
from kvevents.transport.endpoints import Endpoint
from kvevents.transport.http_listener import HttpListener
from kvevents.transport.relay.relay import Relay

_SOCKETS = {
    "endpoint",
    "endpoint_host",
    "endpoint_port_base",
    "replay_endpoint",
    "replay_endpoint_port_base",
    "snapshot",
}
_LOAD = {"load_endpoint_port_base", "load_topic"}


class ServerInfo:
    """An HTTP listener with `GET /server_info` for each worker of a relay.

    `/<worker id>/server_info` passes on what the engine answers now, or what it answered last while it does not;
    `/server_info` is that of the only worker. `/stats` tells what the relay did, `/health` that it runs.

    Args:
        relay: whose sockets.
        urls: base URLs of engines by worker id; a worker without one has only `kv_events` to tell.
        listen: `host:port`, port 0 takes a free one.
        api_key: sent to engines as bearer token.

    Attributes:
        url: where it listens.

    Raises:
        ConfigError: `listen` is no address.
        TransportError: it cannot be listened on.
    """

    def __init__(
        self,
        relay: Relay,
        urls: Mapping[str, str],
        *,
        listen: str = "127.0.0.1:0",
        api_key: str | None = None,
    ) -> None:
        self._relay = relay
        self._urls = dict(urls)
        self._api_key = api_key
        self._last: dict[str, dict[str, Any]] = {}
        host, port = _address(listen)
        try:
            self._listener = HttpListener(self.answer, host, port, name="kvevents-relay-http")
        except OSError as error:
            raise TransportError(f"cannot listen on {listen}: {error.strerror or error}") from error
        self.url = self._listener.url

    def url_of(self, worker_id: str) -> str:
        """The base URL for whoever discovers a worker."""
        return f"{self.url}/{quote(worker_id, safe='')}"

    def answer(self, path: str) -> tuple[HTTPStatus, object]:
        """Status and body for a path."""
        if path == "/health":
            return HTTPStatus.OK, {"status": "ok"}
        if path == "/stats":
            return HTTPStatus.OK, self._relay.stats()
        workers = self._relay.worker_ids
        paths = {f"/{quote(worker, safe='')}/server_info": worker for worker in workers}
        if len(workers) == 1:
            paths["/server_info"] = workers[0]
        if path not in paths:
            return HTTPStatus.NOT_FOUND, {"error": {"code": "not_found", "message": f"known are {sorted(paths)}"}}
        return HTTPStatus.OK, self._info(paths[path])

    def close(self) -> None:
        """Stops to listen; idempotent."""
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _info(self, worker: str) -> dict[str, Any]:
        if worker in self._urls:
            # An engine that is restarting, or answers with something else: what it said last is the best there is.
            with contextlib.suppress(KVEventsError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                body = fetch_server_info(self._urls[worker], api_key=self._api_key)
                self._last[worker] = msgspec.json.decode(body, type=dict[str, Any])
        info = self._last.get(worker, {})
        told = info.get("kv_events")
        kept = {} if not isinstance(told, dict) else {name: told[name] for name in told if name not in _SOCKETS}
        ours = self._relay.describe(worker)
        if not self._has_host_of_engine(worker, ours):
            kept = {name: value for name, value in kept.items() if name not in _LOAD}
        return info | {"kv_events": kept | {name: value for name, value in ours.items() if value is not None}}

    def _has_host_of_engine(self, worker: str, ours: Mapping[str, object]) -> bool:
        """Whether the engine's other sockets can be reached at the host of the relay's."""
        engine = urlsplit(self._urls.get(worker, "")).hostname
        live = Endpoint("tcp", str(ours.get("endpoint_host", "")), 1, "")
        return engine is not None and Endpoint("tcp", engine, 1, "").to_connect() == live.to_connect()


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"http: expected host:port such as 127.0.0.1:0, got {listen!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
