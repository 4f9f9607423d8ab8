"""The heads that the proxy writes: a request's to its worker, and what a reply says about the decision."""

import functools
from typing import Protocol
from urllib.parse import urlsplit

from kvevents.routing import Decision
from kvevents.server.proxy.heads import HOP_HEADER, RANK_HEADER, Headers, RequestHead


class Addressee(Protocol):
    """What a head needs to know of a worker."""

    url: str
    ranks: int
    authorization: bytes | None


@functools.lru_cache(maxsize=1024)
def _host(url: str) -> bytes:
    return urlsplit(url).netloc.encode("latin-1")


def request_head(
    worker: Addressee,
    target: bytes,
    head: RequestHead,
    *,
    request_id: bytes,
    dp_rank: int,
    hops: bytes,
    trace: Headers,
    length: int,
) -> bytes:
    """The head of a request as the worker gets it: the client's headers, and who sends what to whom."""
    lines = [
        b"POST %b HTTP/1.1\r\nhost: %b\r\n%baccept-encoding: identity\r\nx-request-id: %b\r\n%b: %b\r\n"
        b"content-length: %d\r\n" % (target, _host(worker.url), head.passed, request_id, HOP_HEADER, hops, length)
    ]
    if worker.ranks > 1:
        lines.append(b"%b: %d\r\n" % (RANK_HEADER, dp_rank))
    if worker.authorization is not None:
        lines.append(b"authorization: %b\r\n" % worker.authorization)
    for name, value in trace:
        lines.append(b"%b: %b\r\n" % (name, value))
    lines.append(b"\r\n")
    return b"".join(lines)


def decision_lines(decision: Decision, block_size: int) -> bytes:
    """Which worker was chosen, and how much of the prompt it is expected to have cached."""
    return (
        b"x-kvevents-worker: %b\r\nx-kvevents-dp-rank: %d\r\nx-kvevents-expected-cached-tokens: %d\r\n"
        b"x-kvevents-expected-cached-blocks: %d\r\n"
        % (
            decision.worker.encode("latin-1", "replace"),
            decision.dp_rank,
            decision.cached_tokens,
            decision.cached_tokens // block_size,
        )
    )
