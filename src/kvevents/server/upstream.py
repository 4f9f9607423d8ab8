"""The side of the proxy that faces the engines: headers, failures, and what to tell the client."""

from collections.abc import Iterable

import aiohttp
import msgspec

from kvevents.routing import Decision

RANK_HEADER = "x-data-parallel-rank"

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_SENT_ON = _HOP_BY_HOP | {
    b"accept-encoding",  # replies come as they are, so that their usage can be read
    b"authorization",  # the client's token is for this router only
    b"content-length",
    b"cookie",
    b"expect",
    b"host",
    RANK_HEADER.encode(),
}
_NOT_SENT_BACK = _HOP_BY_HOP | {b"date", b"server"}

Headers = list[tuple[bytes, bytes]]


class UnansweredError(Exception):
    """A worker failed before anything was sent to the client.

    Attributes:
        delivered: whether the request may have reached the worker, which then may have failed over it.
        is_late: whether the worker was given all its time.
    """

    def __init__(self, reason: str, error: Exception) -> None:
        super().__init__(reason)
        self.delivered = not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        self.is_late = self.delivered and isinstance(error, TimeoutError)


def target_url(worker_url: str, path: str, query: bytes) -> str:
    """Where a request goes on to."""
    return f"{worker_url}{path}?{query.decode('latin-1')}" if query else f"{worker_url}{path}"


def request_headers(headers: Iterable[tuple[bytes, bytes]], decision: Decision, *, ranks: int) -> list[tuple[str, str]]:
    """The client's headers as the worker gets them."""
    passed = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name not in _NOT_SENT_ON]
    passed.append(("accept-encoding", "identity"))
    if ranks > 1:
        passed.append((RANK_HEADER, str(decision.dp_rank)))
    return passed


def response_headers(headers: Iterable[tuple[bytes, bytes]], decision: Decision, *, block_size: int) -> Headers:
    """The worker's headers as the client gets them, and where the request went."""
    lowered = ((name.lower(), value) for name, value in headers)
    passed = [
        (name, value) for name, value in lowered if name not in _NOT_SENT_BACK and not name.startswith(b"x-kvevents-")
    ]
    return [*passed, *_decision_headers(decision, block_size=block_size)]


def _decision_headers(decision: Decision, *, block_size: int) -> Headers:
    """Which worker was chosen, and how many blocks of the prompt it is expected to have cached."""
    return [
        (b"x-kvevents-worker", decision.worker.encode("latin-1", "replace")),
        (b"x-kvevents-rank", b"%d" % decision.dp_rank),
        (b"x-kvevents-expected-cached-blocks", b"%d" % (decision.cached_tokens // block_size)),
    ]


def failure(error: Exception) -> str:
    """What a failed connection comes down to, without the worker's address."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return "no connection in time"
        case aiohttp.ClientConnectorError():
            return f"no connection ({error.os_error.strerror or type(error.os_error).__name__})"
        case TimeoutError():
            return "sent nothing for too long"
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError():
            return "closed the connection before its answer was complete"
        case _:
            return f"answered with something that is not HTTP ({type(error).__name__})"


def error_event(message: str) -> bytes:
    """The server-sent event that ends a stream whose worker failed."""
    error = {"message": message, "type": "server_error", "param": None, "code": "worker_failed"}
    return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"
