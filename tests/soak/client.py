"""A client that knows what became of each of its requests, and costs little itself."""

import asyncio
import json
import time
from typing import NamedTuple

IDLE_S = 1.0
"""Older connections are not used again: the other side may be about to close them."""


class Answer(NamedTuple):
    """What became of a request.

    Attributes:
        started: when it was sent, monotonic.
        ended: when its last byte came, or nothing more could.
        status: of the reply; 0 if there was none.
        worker: who answered, as the router says.
        is_complete: whether the reply came to the end that HTTP gives it.
        error: the message of an error event in its stream.
        body: of a reply that is no success.
    """

    started: float
    ended: float
    status: int
    worker: str
    is_complete: bool
    error: str | None
    body: str

    @property
    def is_success(self) -> bool:
        return self.status == 200 and self.is_complete and self.error is None


class Client:
    """Connections to one address, as many as there are requests at a time."""

    def __init__(self, url: str) -> None:
        self._host, _, port = url.removeprefix("http://").rpartition(":")
        self._port = int(port)
        self._idle: list[_Connection] = []

    async def ask(self, body: dict[str, object]) -> Answer:
        """Send a completion and wait for what becomes of it. Never raises for what the other side does."""
        data = json.dumps(body, separators=(",", ":")).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        connection = await self._connection()
        answer = await connection.exchange(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        if answer.is_complete and not connection.is_lost:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        for connection in self._idle:
            connection.close()

    async def _connection(self) -> "_Connection":
        now = time.monotonic()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_lost and now - connection.last < IDLE_S:
                return connection
            connection.close()
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(_Connection, self._host, self._port)
        return made


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.is_lost = False
        self.last = time.monotonic()
        self._received = bytearray()
        self._done: asyncio.Future[bool] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._done is not None and not self._done.done() and _is_whole(self._received):
            self._done.set_result(True)

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_lost = True
        if self._done is not None and not self._done.done():
            self._done.set_result(False)

    async def exchange(self, request: bytes) -> Answer:
        self._received.clear()
        self._done = asyncio.get_running_loop().create_future()
        started = time.monotonic()
        self._transport.write(request)
        if self.is_lost:
            self._done.set_result(False)
        is_complete = await self._done
        self.last = time.monotonic()
        head, _, body = bytes(self._received).partition(b"\r\n\r\n")
        status = int(head[9:12]) if head.startswith(b"HTTP/1.1 ") else 0
        place = body.find(b'data: {"error"')
        error = None if place < 0 else body[place : place + 300].decode(errors="replace")
        said = "" if status == 200 else body[:500].decode(errors="replace")
        return Answer(started, self.last, status, _header(head, b"x-kvevents-worker"), is_complete, error, said)

    def close(self) -> None:
        self._transport.abort()


def _header(head: bytes, name: bytes) -> str:
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return next((value.strip().decode("latin-1") for key, _, value in lines if key.lower() == name), "")


def _is_whole(received: bytearray) -> bool:
    """Whether a reply is complete; a chunked one is when its last bytes are those of the last chunk."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = bytes(received[:end])
    length = _header(head, b"content-length")
    if length:
        return len(received) >= end + 4 + int(length)
    return bool(_header(head, b"transfer-encoding")) and received.endswith(b"\r\n0\r\n\r\n")
