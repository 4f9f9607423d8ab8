"""Tells over HTTP where a relay publishes: the engine's `/server_info`, with the relay's sockets in it."""

import contextlib
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6, SHUT_RDWR, SO_REUSEADDR, SOL_SOCKET, socket
from typing import Any, Self
from urllib.parse import quote, urlsplit

import msgspec

from kvevents.errors import ConfigError, KVEventsError, TransportError
from kvevents.transport.discovery import fetch_server_info
from kvevents.transport.endpoints import Endpoint
from kvevents.transport.relay.relay import Relay

_MOST_CONNECTIONS = 64
_IDLE_S = 10.0
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
            self._server = _Server((host, port), self)
        except OSError as error:
            raise TransportError(f"cannot listen on {listen}: {error.strerror or error}") from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="kvevents-relay-http", daemon=True)
        self._thread.start()

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
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, address: tuple[str, int], info: ServerInfo) -> None:
        if ":" in address[0]:
            self.address_family = AF_INET6
        self.info = info
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._open: dict[Any, float] = {}
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        self.socket.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name = ""  # without asking a name server
        self.server_port = int(self.server_address[1])

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)  # too many at once
            self._end_oldest()
            return
        self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.pop(request, None)
            self._free.release()

    def _end_oldest(self) -> None:
        """Ends those that have had their time: who sends a request byte by byte is never idle."""
        latest = time.monotonic() - _IDLE_S
        for request in [request for request, since in list(self._open.items()) if since < latest]:
            with contextlib.suppress(OSError):
                request.shutdown(SHUT_RDWR)

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """A peer that goes away in the middle is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _IDLE_S
    protocol_version = "HTTP/1.1"
    server_version = "kvevents"
    sys_version = ""

    def do_GET(self) -> None:
        status, body = self.server.info.answer(urlsplit(self.path).path)
        data = msgspec.json.encode(body)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """No line for each request."""


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"http: expected host:port such as 127.0.0.1:0, got {listen!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
