"""Answers `GET /server_info` as an engine does, so that whoever is given a URL finds the sockets."""

from http import HTTPStatus
from typing import Any, Self

from kvevents.errors import TransportError
from kvevents.transport.http_listener import HttpListener


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
        self._kv_events = kv_events
        try:
            self._listener = HttpListener(self._answer, host, port, name="kvevents-replay-http")
        except OSError as error:
            raise TransportError(f"http://{host}:{port}: cannot listen there: {error.strerror or error}") from error
        self.url = self._listener.url

    def close(self) -> None:
        """Stops to answer; idempotent."""
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, path: str) -> tuple[HTTPStatus, object]:
        if path in {"/server_info", "/get_server_info"}:
            return HTTPStatus.OK, {"kv_events": self._kv_events}
        return HTTPStatus.OK if path == "/health" else HTTPStatus.NOT_FOUND, {}
