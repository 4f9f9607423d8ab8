"""One connection that is kept, and requests made beforehand: little of its own in what is measured."""

import json
import socket
from typing import Any


class HttpClient:
    """To a port of this machine.

    Raises:
        OSError: nobody listens there.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=300)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @staticmethod
    def post(path: str, body: Any) -> bytes:
        """A request with a JSON body."""
        data = json.dumps(body, separators=(",", ":")).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data

    @staticmethod
    def get(path: str) -> bytes:
        """A request without a body."""
        return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

    def send(self, request: bytes) -> bytes:
        """The body of the answer.

        Raises:
            RuntimeError: it is no success.
        """
        self._socket.sendall(request)
        received = b""
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += self._read()
        head = received[:end].lower()
        body = received[end + 4 :]
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(body) < length:
            body += self._read()
        if not head.startswith(b"http/1.1 2"):
            raise RuntimeError(f"expected a success, got {head[:60]!r}: {body[:200]!r}")
        return body

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> bytes:
        data = self._socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the connection was closed before the answer was complete")
        return data
