"""The side of the proxy that faces the client."""

from starlette.types import Send

from kvevents.server.upstream import Headers


class Client:
    """Sends one reply.

    Attributes:
        is_started: whether the status has been sent, so that no other reply is possible.
        is_event_stream: whether the reply is a stream of server-sent events.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False
        self.is_event_stream = False

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        self.is_started = True
        self.is_event_stream = any(
            name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers
        )
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, chunk: bytes) -> None:
        """Send a part of the body; waits while the client does not read."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self) -> None:
        """Say that the body is complete."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
