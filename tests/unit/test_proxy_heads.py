"""What the proxy reads of heads, and what it writes."""

import pytest

from kvevents.server.errors import HttpError
from kvevents.server.proxy.heads import MalformedReplyError, read_reply_head, read_request_head
from kvevents.server.proxy.outgoing import request_head

HOST = (b"Host", b"router")


class Worker:
    url = "http://engine:30000"
    ranks = 1
    authorization: bytes | None = None


def written(*headers: tuple[bytes, bytes], worker: Worker | None = None) -> bytes:
    head = read_request_head([HOST, *headers], is_http_1_0=False)
    return request_head(
        worker or Worker(),
        b"/v1/completions?a=b",
        head,
        request_id=b"id",
        dp_rank=1,
        hops=b"me",
        trace=head.trace,
        length=7,
    )


def test_a_worker_gets_the_clients_headers_as_they_came() -> None:
    assert written((b"Content-Type", b"application/json"), (b"X-Odd", b" a  b ")) == (
        b"POST /v1/completions?a=b HTTP/1.1\r\nhost: engine:30000\r\n"
        b"Content-Type: application/json\r\nX-Odd:  a  b \r\n"
        b"accept-encoding: identity\r\nx-request-id: id\r\nx-kvevents-hop: me\r\ncontent-length: 7\r\n\r\n"
    )


@pytest.mark.parametrize(
    "name",
    [b"Authorization", b"COOKIE", b"Accept-Encoding", b"Connection", b"Keep-Alive", b"TE", b"Trailer", b"Upgrade",
     b"Proxy-Authorization", b"Proxy-Connection", b"Expect", b"X-Data-Parallel-Rank", b"X-Request-ID",
     b"X-KVEvents-Hop", b"HTTP2-Settings"],
)  # fmt: skip
def test_what_is_not_the_workers_business_stays_here(name: bytes) -> None:
    assert b"secret" not in written((name, b"secret"))


def test_headers_that_connection_names_stay_here() -> None:
    head = written((b"Connection", b"close, X-Private"), (b"X-Private", b"secret"), (b"X-Public", b"a"))
    assert b"secret" not in head
    assert b"X-Public: a\r\n" in head


def test_a_worker_gets_its_rank_and_its_own_key() -> None:
    worker = Worker()
    worker.ranks, worker.authorization = 2, b"Bearer key"
    head = written((b"authorization", b"Bearer client"), worker=worker)
    assert b"x-data-parallel-rank: 1\r\n" in head
    assert b"authorization: Bearer key\r\n" in head
    assert b"client" not in head


def test_a_trace_is_told_apart() -> None:
    head = read_request_head([HOST, (b"TraceParent", b"00-a")], is_http_1_0=False)
    assert list(head.trace) == [(b"traceparent", b"00-a")]
    assert head.passed == b""


@pytest.mark.parametrize(
    ("headers", "length"),
    [
        ([], 0),
        ([(b"content-length", b"12")], 12),
        ([(b"Transfer-Encoding", b"Chunked")], None),
    ],
)
def test_the_length_of_a_body(headers: list[tuple[bytes, bytes]], length: int | None) -> None:
    assert read_request_head([HOST, *headers], is_http_1_0=False).length == length


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-length", b"1"), (b"transfer-encoding", b"chunked")],
        [(b"content-length", b"1"), (b"content-length", b"1")],
        [(b"content-length", b"1_0")],
        [(b"content-length", b" 1")],
        [(b"content-length", b"")],
        [(b"content-length", "\u0661".encode())],
        [(b"transfer-encoding", b"identity")],
        [(b"transfer-encoding", b"chunked, chunked")],
        [(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")],
        [(b"authorization", b"a"), (b"authorization", b"b")],
        [HOST],
    ],
)
def test_heads_that_can_be_read_in_two_ways_are_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(HttpError) as refusal:
        read_request_head([HOST, *headers], is_http_1_0=False)
    assert (refusal.value.status, refusal.value.code) == (400, "bad_http")


def test_a_host_is_needed_since_http_1_1() -> None:
    read_request_head([], is_http_1_0=True)
    with pytest.raises(HttpError):
        read_request_head([], is_http_1_0=False)


def test_a_reply_keeps_its_headers_but_those_of_the_connection() -> None:
    head = read_reply_head(
        200,
        b"HTTP/1.1 200 OK",
        [
            (b"Server", b"engine"),
            (b"Content-Type", b"text/event-stream; charset=utf-8"),
            (b"Transfer-Encoding", b"chunked"),
            (b"Connection", b"close, x-private"),
            (b"X-Private", b"a"),
            (b"X-Request-Id", b"its own"),
            (b"X-Kvevents-Worker", b"forged"),
            (b"Set-Cookie", b"a"),
            (b"Set-Cookie", b"b"),
        ],
    )
    assert head.passed == (
        b"Server: engine\r\nContent-Type: text/event-stream; charset=utf-8\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n"
    )
    assert (head.is_chunked, head.is_event_stream, head.length, head.ends_with_connection) == (True, True, None, False)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, [(b"content-length", b"1"), (b"transfer-encoding", b"chunked")]),
        (200, [(b"content-length", b"1"), (b"content-length", b"2")]),
        (200, [(b"content-length", b"-1")]),
        (200, [(b"transfer-encoding", b"gzip, chunked")]),
        (302, [(b"location", b"http://elsewhere/")]),
    ],
)
def test_replies_that_contradict_themselves_are_none(status: int, headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(MalformedReplyError):
        read_reply_head(status, b"HTTP/1.1 200 OK", headers)
