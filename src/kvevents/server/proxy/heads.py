"""What is read of a message's head, and what it becomes on the other side."""

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

from kvevents.server.errors import HttpError

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

RANK_HEADER = b"x-data-parallel-rank"
"""vLLM and SGLang read the rank from it; in SGLang it goes before the body's `routed_dp_rank`."""

HOP_HEADER = b"x-kvevents-hop"
"""The routers that a request has passed."""

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_MOST_DIGITS = 18

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
        b"http2-settings",
    }
)
_TRACE = (b"traceparent", b"tracestate")
_OWN = _HOP_BY_HOP | {
    b"accept-encoding",  # replies come as they are, so that their usage can be read
    b"authorization",  # the client's token is for this router only
    b"content-length",
    b"content-type",
    b"cookie",
    b"expect",
    b"host",
    b"x-request-id",
    RANK_HEADER,
    HOP_HEADER,
    *_TRACE,
}
_PASSED_IN_REPLIES = frozenset({b"content-length", b"content-type"})
_OWN_IN_REPLIES = _HOP_BY_HOP | _PASSED_IN_REPLIES | {b"x-request-id"}


class RequestHead(NamedTuple):
    """A request's headers, sorted by who they are for.

    Attributes:
        passed: lines for the worker as they came, each with its line end.
        length: of the body by its header; None when it is chunked.
        expects_continue: whether the client waits for `100 Continue`.
        authorization: header value; empty when there is none.
        content_type: header value; empty when there is none.
        request_id: the client's own, if it is sane.
        hops: the routers the request has passed.
        trace: headers of a trace that the request is part of, names in lower case; not among `passed`.
    """

    passed: bytes
    length: int | None
    expects_continue: bool
    authorization: bytes
    content_type: bytes
    request_id: bytes | None
    hops: bytes
    trace: Headers


def read_request_head(headers: Headers, *, is_http_1_0: bool) -> RequestHead:
    """Sort the headers of a request.

    Raises:
        HttpError: 400, they contradict each other about where the body ends or whom the request is for: what two
            servers may read differently is answered by none.
    """
    passed: list[bytes] = []
    own: dict[bytes, bytes] = {}
    for name, value in headers:
        key = name.lower()
        if key not in _OWN:
            passed += (name, b": ", value, b"\r\n")
        elif key not in own:
            own[key] = value
            if key == b"content-type":
                passed += (name, b": ", value, b"\r\n")
        elif key in {b"host", b"content-length", b"transfer-encoding", b"content-type", b"authorization"}:
            raise _bad(f"expected one {key.decode()} header, got several")
        else:
            own[key] += b"," + value
    if b"host" not in own and not is_http_1_0:
        raise _bad("expected a host header, got none")
    connection = own.get(b"connection")
    if connection is not None and connection.lower() not in {b"keep-alive", b"close"}:
        passed = _without(passed, {word.strip().lower() for word in connection.split(b",")})
    request_id = own.get(b"x-request-id")
    return RequestHead(
        passed=b"".join(passed),
        length=_body_length(own, is_http_1_0=is_http_1_0),
        expects_continue=not is_http_1_0 and own.get(b"expect", b"").lower() == b"100-continue",
        authorization=own.get(b"authorization", b""),
        content_type=own.get(b"content-type", b""),
        request_id=request_id if request_id is not None and _REQUEST_ID.fullmatch(request_id) else None,
        hops=own.get(HOP_HEADER, b""),
        trace=[(key, own[key]) for key in _TRACE if key in own],
    )


def _body_length(own: dict[bytes, bytes], *, is_http_1_0: bool) -> int | None:
    """Length of the body; None when it is chunked."""
    encoding, length = own.get(b"transfer-encoding"), own.get(b"content-length")
    if encoding is None:
        if length is not None and not _is_number(length):
            raise _bad("expected digits as content-length")
        return int(length or 0)
    if length is not None:
        raise _bad("expected content-length or transfer-encoding, got both")
    if encoding.lower() != b"chunked" or is_http_1_0:
        raise _bad("expected no transfer-encoding but chunked, and that in HTTP/1.1")
    return None


def _is_number(value: bytes) -> bool:
    return value.isdigit() and len(value) <= _MOST_DIGITS


def _without(lines: Sequence[bytes], names: set[bytes]) -> list[bytes]:
    """Header lines, in four parts each, without those that a connection header names."""
    kept: list[bytes] = []
    for start in range(0, len(lines), 4):
        if lines[start].lower() not in names:
            kept += lines[start : start + 4]
    return kept


def _bad(what: str) -> HttpError:
    return HttpError(400, "bad_http", f"request: {what}")


class MalformedReplyError(Exception):
    """A worker's reply that contradicts itself."""


class ReplyHead(NamedTuple):
    """A reply's status and headers.

    Attributes:
        status: its code.
        first_line: its status line.
        passed: header lines for the client as they came.
        length: of the body by its header; None when there is none.
        is_chunked: whether the body comes in chunks.
        is_event_stream: whether it is a stream of server-sent events.
    """

    status: int
    first_line: bytes
    passed: bytes
    length: int | None
    is_chunked: bool
    is_event_stream: bool

    @property
    def ends_with_connection(self) -> bool:
        """Whether only the end of the connection says where the body ends."""
        return self.length is None and not self.is_chunked


def read_reply_head(status: int, first_line: bytes, headers: Headers) -> ReplyHead:
    """Sort the headers of a reply.

    Raises:
        MalformedReplyError: they contradict each other about where the body ends, or it is a redirect.
    """
    passed: list[bytes] = []
    own: dict[bytes, bytes] = {}
    for name, value in headers:
        key = name.lower()
        if key in _OWN_IN_REPLIES:
            if key in own and key in {b"content-length", b"transfer-encoding"}:
                raise MalformedReplyError(f"answered with several {key.decode()} headers")
            own[key] = value
            if key not in _PASSED_IN_REPLIES:
                continue
        elif key.startswith(b"x-kvevents-"):
            continue
        passed += (name, b": ", value, b"\r\n")
    connection = own.get(b"connection")
    if connection is not None:
        named = {word.strip().lower() for word in connection.split(b",")}
        named -= {b"", b"close", b"keep-alive", b"content-length", b"content-type"}
        passed = _without(passed, named) if named else passed
    length, is_chunked = _reply_length(own)
    if 300 <= status < 400 and status != 304:
        raise MalformedReplyError("answered with a redirect, and none is followed")
    return ReplyHead(
        status=status,
        first_line=first_line,
        passed=b"".join(passed),
        length=0 if status in {204, 304} else length,
        is_chunked=is_chunked,
        is_event_stream=own.get(b"content-type", b"").startswith(b"text/event-stream"),
    )


def _reply_length(own: dict[bytes, bytes]) -> tuple[int | None, bool]:
    """Length of a reply's body by its header, and whether it is chunked."""
    encoding, length = own.get(b"transfer-encoding"), own.get(b"content-length")
    if encoding is not None and encoding.lower() != b"chunked":
        raise MalformedReplyError("answered with a transfer-encoding other than chunked")
    if encoding is not None and length is not None:
        raise MalformedReplyError("answered with both content-length and transfer-encoding")
    if length is not None and not _is_number(length):
        raise MalformedReplyError("answered with a content-length that is none")
    return None if length is None else int(length), encoding is not None


def own_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head of a reply of our own."""
    lines = [b"HTTP/1.1 %d %s\r\n" % (status, _REASONS.get(status, b"Unknown"))]
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
