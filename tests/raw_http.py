"""Bytes to a router and bytes from it, and workers that answer as they are told: what no HTTP library would send."""

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

PATIENCE_S = 20.0
CLIENT, ADMIN = "for-clients", "for-admins"
"""Tokens of routers that are started here."""

Behaviour = Callable[[socket.socket], None]


class Reply(NamedTuple):
    """One reply.

    Attributes:
        status: 0 where nothing came that is HTTP.
        head: with the first line, in lower case.
        body: decoded from its chunks.
        rest: bytes after it.
        is_whole: whether it came to its end.
    """

    status: int
    head: bytes
    body: bytes
    rest: bytes
    is_whole: bool

    @property
    def error(self) -> dict[str, Any]:
        """In OpenAI's shape, which is checked, or ours."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert {"code", "message"} <= set(error) <= {"code", "message", "type", "param"}, error
        return error


def parse(data: bytes) -> Reply:
    """The first final reply in `data`."""
    while data.startswith(b"HTTP/1.1 1"):
        data = data.partition(b"\r\n\r\n")[2]
    head, end, rest = data.partition(b"\r\n\r\n")
    head = head.lower()
    if not end or not head.startswith(b"http/1."):
        return Reply(0, head, b"", rest, is_whole=False)
    status = int(head[9:12])
    length = _header(head, b"content-length")
    if length is not None:
        size = int(length)
        return Reply(status, head, rest[:size], rest[size:], is_whole=len(rest) >= size)
    body = b""
    if _header(head, b"transfer-encoding") is None:
        return Reply(status, head, rest, b"", is_whole=status in {204, 304})
    while (size_end := rest.find(b"\r\n")) >= 0:
        size = int(rest[:size_end].partition(b";")[0], 16)
        chunk, rest = rest[size_end + 2 : size_end + 2 + size], rest[size_end + 2 + size + 2 :]
        body += chunk
        if size == 0:
            return Reply(status, head, body, rest, is_whole=True)
        if len(chunk) < size:
            break
    return Reply(status, head, body, b"", is_whole=False)


def _header(head: bytes, name: bytes) -> bytes | None:
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return next((value.strip() for key, _, value in lines if key == name), None)


def request(body: object, *, path: str = "/v1/completions", token: str = CLIENT, headers: str = "") -> bytes:
    """A request as it should be; `body` as JSON unless it is bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: router\r\nAuthorization: Bearer {token}\r\n{headers}"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def asked(**fields: object) -> dict[str, object]:
    """The body of a good completion."""
    return {"model": "stub", "prompt": [1, 2, 3], "max_tokens": 1, **fields}


class Wire:
    """A connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """As much as the other side takes: who is refused may find the connection closed."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def reply(self) -> Reply:
        """The next whole reply, or what came until the other side closed."""
        data = b""
        while not (reply := parse(data)).is_whole:
            piece = self._receive()
            if not piece:
                return reply
            data += piece
        return reply

    def rest(self) -> bytes:
        """Everything until the other side closes."""
        data = b""
        while piece := self._receive():
            data += piece
        return data

    def _receive(self) -> bytes:
        try:
            return self.socket.recv(1 << 16)
        except ConnectionError:
            return b""


class BadWorkers:
    """Workers that answer a completion as the `user` in it says: the name of a behaviour.

    Attributes:
        urls: of each.
        arrived: bodies that came, of all.
    """

    def __init__(self, number: int, behaviours: dict[str, Behaviour]) -> None:
        self._behaviours = behaviours
        self.arrived: list[Any] = []
        self._servers = [socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in range(number)]
        self.urls = [f"http://127.0.0.1:{server.getsockname()[1]}" for server in self._servers]
        for server in self._servers:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()

    def close(self) -> None:
        for server in self._servers:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    piece = connection.recv(1 << 16)
                    if not piece:
                        return
                    data += piece
                head, _, data = data.partition(b"\r\n\r\n")
                length = int(_header(head.lower(), b"content-length") or 0)
                while len(data) < length:
                    data += connection.recv(1 << 16)
                body, data = data[:length], data[length:]
                if head.startswith(b"GET"):
                    models = {"object": "list", "data": [{"id": "stub", "object": "model"}]}
                    connection.sendall(whole(models if b" /v1/models " in head else {}))
                    continue
                try:
                    read = json.loads(body)
                except (ValueError, RecursionError):
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                    continue
                self.arrived.append(read)
                told = read.get("user") if isinstance(read, dict) else None
                behave = self._behaviours.get(told) if isinstance(told, str) else None
                if behave is not None:
                    behave(connection)
                    return
                connection.sendall(whole({"id": "1", "choices": [{"text": "a"}], "usage": {"prompt_tokens": 3}}))


def whole(value: object) -> bytes:
    """A reply with a JSON body."""
    data = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data


class Router:
    """`kvevents serve` as a process.

    Args:
        workers: base URLs.
        settings: `section.key=value` each.
        log: what it writes on stderr.
    """

    def __init__(self, workers: Sequence[str], settings: Sequence[str], log: Path) -> None:
        options = [word for url in workers for word in ("--worker", url)]
        options += [word for setting in settings for word in ("--set", setting)]
        tokens = {"KVEVENTS_CLIENT_TOKEN": CLIENT, "KVEVENTS_ADMIN_TOKEN": ADMIN}
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvevents", "serve", "--port", "0", *options],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **tokens},
            )
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE_S), "the router said nothing"
        line = self._process.stdout.readline()
        assert line, f"the router ended before it was ready: {log.read_text()}"
        self.port = int(json.loads(line)["url"].rpartition(":")[2])

    def wire(self) -> Wire:
        return Wire(self.port)

    def send(self, data: bytes) -> Reply:
        """The reply to some bytes on a connection of their own."""
        with self.wire() as wire:
            wire.send(data)
            return wire.reply()

    def counters(self) -> dict[str, float]:
        """Every sample of the metrics."""
        reply = self.get("/metrics")
        text = reply.body.decode() if reply.status == 200 else ""
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def get(self, path: str, *, token: str = ADMIN) -> Reply:
        return self.send(f"GET {path} HTTP/1.1\r\nHost: router\r\nAuthorization: Bearer {token}\r\n\r\n".encode())

    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def close(self) -> str:
        """End it; what it wrote on stderr."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()
        return self._log.read_text()


def until(condition: Callable[[], bool]) -> None:
    """Ask again and again."""
    for _ in deadline():
        if condition():
            return


def deadline() -> Iterator[None]:
    """For polling: yields until it is over, then fails."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        yield
        time.sleep(0.01)
    raise TimeoutError(f"not within {PATIENCE_S:g} s")
