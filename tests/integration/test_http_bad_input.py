"""What no client and no worker should send: the right status, an error in OpenAI's shape, a counter, nothing harmed."""

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from raw_http import ADMIN, CLIENT, BadWorkers, Behaviour, Reply, Router, asked, request, until

pytestmark = pytest.mark.integration

TIMEOUT_S = 1.0
MAX_BODY = 200_000
SETTINGS = (
    f"proxy.max_body_bytes={MAX_BODY}",
    f"proxy.head_timeout_s={TIMEOUT_S}",
    f"proxy.body_timeout_s={TIMEOUT_S}",
    f"proxy.first_byte_timeout_s={TIMEOUT_S}",
    f"proxy.idle_timeout_s={TIMEOUT_S}",
)
AUTHORIZED = b"Host: router\r\nAuthorization: Bearer for-clients\r\n"
SECRET = b"smuggled"
"""The prompt of a request that is hidden in another one and must reach no worker."""


def says(*parts: bytes, hang: bool = False) -> Behaviour:
    """A worker that sends these bytes and closes, or says nothing more."""

    def behave(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
            time.sleep(0.05)  # the next one is read by itself
        if hang:
            connection.settimeout(30)
            connection.recv(1)

    return behave


def endless(part: bytes) -> Behaviour:
    """A worker that sends these bytes again and again."""

    def behave(connection: socket.socket) -> None:
        while True:
            connection.sendall(part)

    return behave


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST = b"9\r\ndata: 1\n\n\r\n"
BEHAVIOURS: dict[str, Behaviour] = {
    "closes": says(),
    "garbage": says(b"\x00\xff\x16\x03 this is no HTTP\r\n\r\n" * 20),
    "another protocol": says(b"SSH-2.0-OpenSSH_9.9\r\n", hang=True),
    "half a head": says(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "a head without end": endless(b"X-More: and more\r\n" * 64),
    "a status that is none": says(b"HTTP/1.1 banana OK\r\nContent-Length: 0\r\n\r\n"),
    "two lengths": says(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    "length and chunks": says(CHUNKED[:-2] + b"Content-Length: 5\r\n\r\n0\r\n\r\n"),
    "a negative length": says(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
    "a chunk that is none": says(CHUNKED + b"zz\r\n"),
    "a huge chunk size": says(CHUNKED + b"FFFFFFFFFFFFFFFFFFFF\r\n"),
    "a redirect": says(b"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
    "half a short reply": says(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"),
    "interim replies for ever": endless(b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "never": says(hang=True),
    "half a stream": says(EVENTS + FIRST),
    "a stream that stops": says(EVENTS + FIRST, hang=True),
    "a stream that turns to garbage": says(EVENTS + FIRST, b"\x00\x01\x02 nonsense\r\n", hang=True),
}


class Place(NamedTuple):
    """A router over bad workers."""

    router: Router
    workers: BadWorkers

    def is_well(self) -> None:
        """A good request is answered as ever."""
        until(lambda: self.router.send(request(asked())).status == 200)


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    workers = BadWorkers(3, BEHAVIOURS)
    log = tmp_path_factory.mktemp("router") / "log"
    with contextlib.closing(workers):
        made = Router(workers.urls, SETTINGS, log)
        try:
            yield Place(made, workers)
        finally:
            said = made.close()
    assert "Traceback" not in said, said


@pytest.fixture(autouse=True)
def nothing_is_harmed(router: Place) -> Iterator[None]:
    router.is_well()
    yield
    router.is_well()


def counted(place: Place, code: str) -> float:
    return place.router.counters().get(f'kvevents_rejected_requests_total{{code="{code}"}}', 0)


def refused(place: Place, data: bytes, status: int, code: str) -> Reply:
    """The reply to what must be refused so, and is counted."""
    before = counted(place, code)
    reply = place.router.send(data)
    assert (reply.status, reply.is_whole) == (status, True), (reply.head, reply.body[:300])
    error = reply.error
    assert error["code"] == code, error
    assert set(error) == {"code", "message", "type", "param"}, error
    assert counted(place, code) == before + 1
    return reply


NESTED = b'{"model":"stub","prompt":' + b"[" * 50_000 + b"]" * 50_000 + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b'{"model": "stub", "prompt": [1, 2',
        b'{"model": "stub", "prompt": "\xff\xfe"}',
        b'{"model": "stub", "prompt": "a"} and more',
        b"\x00" * 100,
        b'{"model": "stub",\x00 "prompt": "a"}',
    ],
    ids=["empty", "text", "half", "not UTF-8", "more after it", "NUL bytes", "a NUL byte"],
)
def test_a_body_that_is_no_json(router: Place, body: bytes) -> None:
    arrived = len(router.workers.arrived)
    refused(router, request(body), 400, "not_json")
    assert len(router.workers.arrived) == arrived


@pytest.mark.parametrize("ids", ["-1", "1.5", "NaN", "99999999999999999999999999", "null", "true", '"a"', "[1]"])
def test_token_ids_that_are_none_are_no_token_ids(router: Place, ids: str) -> None:
    body = b'{"model": "stub", "prompt": [1, 2, %s], "max_tokens": 1}' % ids.encode()
    reply = router.router.send(request(body))
    assert reply.status in {200, 400}  # what only the engine can judge it is asked; never a failure of the router
    if reply.status == 400:
        assert reply.error["type"] == "invalid_request_error"


def test_nesting_without_end(router: Place) -> None:
    reply = router.router.send(request(NESTED))
    assert reply.status in {200, 400}


def test_an_unknown_model(router: Place) -> None:
    refused(router, request(asked(model="another")), 404, "model_not_found")


@pytest.mark.parametrize("has_length", [True, False], ids=["said", "found"])
def test_a_body_that_is_too_large(router: Place, has_length: bool) -> None:
    if has_length:
        data = request(b"")[:-5] + b"%d\r\n\r\n" % (MAX_BODY + 1)
        data = request(b"").replace(b"Content-Length: 0", b"Content-Length: %d" % (MAX_BODY + 1))
    else:
        head = request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        data = head + b"8000\r\n" + b" " * 0x8000 + b"\r\n"
        data += (b"8000\r\n" + b" " * 0x8000 + b"\r\n") * 7
    refused(router, data, 413, "body_too_large")


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_client_that_takes_for_ever(router: Place, part: str) -> None:
    code = f"{part}_timeout"
    before, started = counted(router, code), time.monotonic()
    with router.router.wire() as wire:
        data = request(asked()) if part == "head" else request(b"x" * 100)
        place = 30 if part == "head" else len(data) - 90
        wire.send(data[:place])
        wire.socket.settimeout(0.1)
        while True:  # a byte now and then must not help
            with contextlib.suppress(TimeoutError):
                if wire.socket.recv(1, socket.MSG_PEEK):
                    break
            wire.send(data[place : place + 1])
            place += 1
            assert time.monotonic() - started < 10 * TIMEOUT_S
        wire.socket.settimeout(10)
        reply = wire.reply()
    assert (reply.status, reply.error["code"]) == (408, code)
    assert TIMEOUT_S * 0.9 < time.monotonic() - started < 4 * TIMEOUT_S
    assert counted(router, code) == before + 1


@pytest.mark.parametrize(
    "headers",
    ["".join(f"X-{number}: a\r\n" for number in range(5000)), "X-Large: " + "a" * 1_000_000 + "\r\n"],
    ids=["many", "large"],
)
def test_a_flood_of_headers(router: Place, headers: str) -> None:
    refused(router, request(asked(), headers=headers), 431, "head_too_large")


def test_an_address_without_end(router: Place) -> None:
    reply = refused(router, request(asked(), path="/v1/" + "a" * 1_000_000), 431, "head_too_large")
    assert b"connection: close" in reply.head


HIDDEN = request(asked(prompt=SECRET.decode()))
SMUGGLED = {
    "length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "lengths in one": b"Content-Length: 0, %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "a length with a sign": b"Content-Length: +0\r\n\r\n" + HIDDEN,
    "a negative length": b"Content-Length: -1\r\n\r\n" + HIDDEN,
    "a length in hex": b"Content-Length: 0x0\r\n\r\n" + HIDDEN,
    "a space before the colon": b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a folded header": b"X-Folded: a\r\n Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    "another encoding": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "an encoding that is none": b"Transfer-Encoding: xchunked\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a bare line feed": b"X-A: b\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a bare carriage return": b"X-A: b\rTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a NUL in a name": b"Trans\x00fer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a NUL in a value": b"X-A: a\x00b\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    "two hosts": b"Host: other\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    "a chunk size without end": b"Transfer-Encoding: chunked\r\n\r\n" + b"F" * 40 + b"\r\n" + HIDDEN,
    "a negative chunk size": b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + HIDDEN,
    "a chunk longer than it says": b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n" + HIDDEN,
}


@pytest.mark.parametrize("headers", SMUGGLED.values(), ids=SMUGGLED.keys())
def test_nobody_reads_a_second_request_into_the_first(router: Place, headers: bytes) -> None:
    """Where two servers could read different things, none of it is done, and the connection ends."""
    before = counted(router, "bad_http")
    with router.router.wire() as wire:
        wire.send(b"POST /v1/completions HTTP/1.1\r\n" + AUTHORIZED + headers)
        reply, rest = wire.reply(), wire.rest()
    assert (reply.status, reply.error["code"]) == (400, "bad_http")
    assert not (reply.rest + rest)
    assert counted(router, "bad_http") == before + 1
    assert all(SECRET.decode() != body.get("prompt") for body in router.workers.arrived)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"GET /health HTTP/9.9\r\nHost: a\r\n\r\n",
        b"GET /hea\x00lth HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\r\n" * 1000 + b"nonsense",
        b"BREW /v1/completions HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
    ids=["TLS", "HTTP/2", "HTTP/0.9", "HTTP/9.9", "NUL in the address", "line ends", "an unknown method"],
)
def test_another_protocol(router: Place, data: bytes) -> None:
    refused(router, data, 400, "bad_http")


def test_a_request_without_host(router: Place) -> None:
    refused(router, request(asked()).replace(b"Host: router\r\n", b""), 400, "bad_http")


def test_a_body_in_very_small_chunks(router: Place) -> None:
    body = request(asked()).partition(b"\r\n\r\n")[2]
    head = request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    chunks = b"".join(b"000001;a=b\r\n%c\r\n" % byte for byte in body + b" " * 5000)
    assert router.router.send(head + chunks + b"0\r\nX-Trailer: a\r\n\r\n").status == 200
    assert router.workers.arrived[-1] == asked()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../workers",
        "/v1/%2e%2e/workers",
        "/v1/completions/../../workers",
        "/v1//../stats",
        "/v1/%2e%2e%2fstats",
        "//workers",
        "/./workers",
        "/%77orkers",
        "http://router/workers",
        "/v1/..%5cworkers",
    ],
)
def test_no_way_around_reaches_what_is_the_admins(router: Place, path: str) -> None:
    reply = router.router.get(path, token=CLIENT)
    assert reply.status in {400, 401, 404}, reply
    assert b"sources" not in reply.body


def test_many_requests_sent_ahead_are_answered_in_order(router: Place) -> None:
    number = 1000
    arrived = len(router.workers.arrived)
    with router.router.wire() as wire:
        wire.socket.setblocking(True)
        wire.send(b"".join(request(asked(max_tokens=one)) for one in range(1, number)))
        wire.send(request(asked(max_tokens=number), headers="Connection: close\r\n"))
        data = wire.rest()
    assert data.count(b"HTTP/1.1 200 OK") == number
    assert [body["max_tokens"] for body in router.workers.arrived[arrived:]] == [*range(1, number + 1)]


@pytest.mark.parametrize(
    ("behaviour", "status", "code"),
    [
        *((name, 502, "worker_failed") for name in list(BEHAVIOURS)[: list(BEHAVIOURS).index("never")]),
        ("never", 504, "worker_timeout"),
    ],
)
def test_a_worker_that_gives_no_answer(router: Place, behaviour: str, status: int, code: str) -> None:
    started = time.monotonic()
    refused(router, request(asked(user=behaviour)), status, code)
    assert time.monotonic() - started < 5 * TIMEOUT_S


@pytest.mark.parametrize("behaviour", ["half a stream", "a stream that stops", "a stream that turns to garbage"])
def test_a_worker_that_gives_half_an_answer(router: Place, behaviour: str) -> None:
    before = router.router.counters()["kvevents_broken_streams_total"]
    reply = router.router.send(request(asked(user=behaviour, stream=True)))
    assert (reply.status, reply.is_whole) == (200, True), reply
    events = reply.body.split(b"\n\n")
    assert events[0].startswith(b"data: 1")
    assert any(event.startswith(b'data: {"error"') for event in events), reply.body
    assert router.router.counters()["kvevents_broken_streams_total"] == before + 1


@pytest.fixture
def connections() -> Iterator[int]:
    """How many a test may open: as many as the router takes, where the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield min(10_050, hard - 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_clients_that_connect_and_say_nothing(router: Place, connections: int, tmp_path: Path) -> None:
    """Who is too many is told so; good requests are answered beside the others, and all of it is forgotten after."""
    most = connections - 50
    patient = Router(router.workers.urls, (f"proxy.max_connections={most}",), tmp_path / "log")
    try:
        before = patient.memory()
        with contextlib.ExitStack() as stack:
            wires = [stack.enter_context(patient.wire()) for _ in range(connections)]
            for wire in wires[:1000]:
                wire.send(b"POST /v1/completions HTTP/1.1\r\nHost: ")
            assert {wire.reply().status for wire in wires[-40:]} == {503}
            for wire in wires[:20]:
                wire.socket.close()
            until(lambda: patient.send(request(asked())).status == 200)
            assert patient.memory() - before < connections * 20_000
        until(lambda: patient.counters().get("kvevents_open_client_connections", most) <= 2)
        assert patient.memory() - before < 60e6
    finally:
        said = patient.close()
    assert "Traceback" not in said, said


def test_clients_that_begin_and_say_no_more(router: Place) -> None:
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(router.router.wire()) for _ in range(300)]
        for wire in wires:
            wire.send(b"POST /v1/completions HTTP/1.1\r\nHost: ")
        router.is_well()
        assert {wire.reply().status for wire in wires} == {408}


def test_clients_that_leave_in_the_middle_are_forgotten(router: Place) -> None:
    data = request(asked(user="never"))
    for place in (5, len(data) // 2, len(data) - 1, len(data)):
        for _ in range(20):
            with router.router.wire() as wire:
                wire.send(data[:place])
    counters = router.router.counters
    until(
        lambda: counters()["kvevents_open_client_connections"] <= 2 and counters()["kvevents_buffered_body_bytes"] == 0
    )


def test_wrong_tokens_open_nothing(router: Place) -> None:
    assert router.router.send(request(asked(), token="wrong")).status == 401
    assert router.router.send(request(asked(), token=ADMIN)).status == 401
    assert router.router.get("/stats", token=CLIENT).status == 401
