"""A small HTTP server beside sockets: what is asked for by GET is answered as JSON."""

import contextlib
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6, SHUT_RDWR, SO_REUSEADDR, SOL_SOCKET, socket
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

import msgspec

_MOST_CONNECTIONS = 64
_IDLE_S = 10.0

Answer: TypeAlias = Callable[[str], tuple[HTTPStatus, object]]
"""Status and body for a path."""


class HttpListener:
    """Listens in a thread of its own, with a bound on connections and on how long one may take.

    Args:
        answer: called for each request, from any thread.
        host: to listen on.
        port: to listen on; 0 takes a free one.
        name: of the thread.

    Attributes:
        url: where it listens.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, answer: Answer, host: str, port: int, *, name: str) -> None:
        self._server = _Server((host, port), answer)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops to listen; idempotent."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, address: tuple[str, int], answer: Answer) -> None:
        if ":" in address[0]:
            self.address_family = AF_INET6
        self.answer = answer
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
        status, body = self.server.answer(urlsplit(self.path).path)
        data = msgspec.json.encode(body)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """No line for each request."""
