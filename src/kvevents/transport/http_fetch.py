"""One exchange with an engine or a router, under limits of time and size."""

import contextlib
import http.client
import socket
import threading
import time
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from kvevents.errors import ConfigError, TransportError

MAX_ANSWER_BYTES = 1 << 20
_SHOWN_BYTES = 2_000

_STATUS_HINTS = {
    401: "it wants an API key or token",
    403: "it does not accept the API key or token",
    404: "is this an SGLang-compatible engine?",
}


class StatusError(TransportError):
    """The other side answers, with a status other than 200.

    Attributes:
        status: the status.
        body: the beginning of what came with it.
    """

    def __init__(self, message: str, *, status: int, body: bytes) -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class Address(NamedTuple):
    """Where an HTTP server is.

    Attributes:
        scheme: `http` or `https`.
        host: a name or an address, without brackets.
        port: also where the URL names none.
        path: prefix of its paths, without a slash at its end.
    """

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """The address in a base URL.

        Raises:
            ConfigError: it is none.
        """
        try:
            parts = urlsplit(url)
            usual = {"http": 80, "https": 443}[parts.scheme]
            host, port = parts.hostname, parts.port or usual
        except (ValueError, KeyError, AttributeError):
            host, port = None, 0
        if host is None:
            raise ConfigError(f"worker URL: expected http://host:port, got {url!r}")
        return cls(parts.scheme, host, port, parts.path.rstrip("/"))

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.address}{self.path}"


def fetch(
    url: str,
    *,
    body: bytes | None = None,
    token: str | None = None,
    timeout_s: float = 5.0,
    max_bytes: int = MAX_ANSWER_BYTES,
) -> bytes:
    """The body of an answer with status 200. No redirect is followed and no proxy used.

    Args:
        url: the whole URL.
        body: JSON to post; None: a GET.
        token: sent as bearer token.
        timeout_s: seconds for the whole exchange, a name server's time aside.
        max_bytes: of the body.

    Raises:
        ConfigError: the URL is none.
        StatusError: another status.
        TransportError: no answer in time, or a body that is too large.
    """
    there = Address.parse(url)
    kind = http.client.HTTPSConnection if there.scheme == "https" else http.client.HTTPConnection
    connection = kind(there.host, there.port, timeout=timeout_s)
    headers = {"Accept": "application/json", "Connection": "close"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    deadline = time.monotonic() + timeout_s
    cut = threading.Event()
    watchdog = None
    try:
        connection.connect()
        # Socket timeouts are per read; an answer that trickles in is cut off by the watchdog.
        watchdog = threading.Timer(deadline - time.monotonic(), _cut, [connection.sock, cut])
        watchdog.daemon = True
        watchdog.start()
        connection.request("GET" if body is None else "POST", there.path or "/", body, headers)
        with connection.getresponse() as response:
            answer = response.read(max_bytes + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        late = f" within {timeout_s:g} s" if isinstance(error, TimeoutError) or cut.is_set() else ""
        raise TransportError(f"{there}: no answer{late}: {str(error) or type(error).__name__}") from error
    finally:
        if watchdog is not None:
            watchdog.cancel()
        connection.close()
    if cut.is_set():
        raise TransportError(f"{there}: the answer was not complete within {timeout_s:g} s")
    if response.status != http.client.OK:
        hint = _STATUS_HINTS.get(response.status, "redirects are not followed" if response.status < 400 else "")
        raise StatusError(
            f"{there}: expected status 200, got {response.status} {response.reason}{hint and '; '}{hint}",
            status=response.status,
            body=answer[:_SHOWN_BYTES],
        )
    if len(answer) > max_bytes:
        raise TransportError(f"{there}: expected an answer of at most {max_bytes} bytes")
    return answer


def _cut(sock: socket.socket, cut: threading.Event) -> None:
    cut.set()
    with contextlib.suppress(OSError):  # closed meanwhile: the answer was complete
        sock.shutdown(socket.SHUT_RDWR)
