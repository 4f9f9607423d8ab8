"""Answers `GET /server_info` as an engine does, so that whoever is given a URL finds the sockets."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import msgspec

from kvevents.errors import TransportError


class ServerInfo:
    """A small HTTP server for one worker.

    Args:
        kv_events: the object that it gives.
        host: to listen on.
        port: to listen on; 0 takes a free one.

    Attributes:
        url: where it listens.

    Raises:
        TransportError: it cannot listen there.
    """

    def __init__(self, kv_events: dict[str, Any], *, host: str = "127.0.0.1", port: int = 0) -> None:
        body = msgspec.json.encode({"kv_events": kv_events})
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(body))
        except OSError as error:
            raise TransportError(f"http://{host}:{port}: cannot listen there: {error.strerror or error}") from error
        self._server.daemon_threads = True
        self.url = f"http://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops to answer; idempotent."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _handler(body: bytes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            found = self.path.partition("?")[0] in {"/server_info", "/get_server_info"}
            is_alive = self.path == "/health"
            self.send_response(200 if found or is_alive else 404)
            answer = body if found else b"{}"
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing of each request."""

    return Handler
