"""One client's connection."""

import asyncio
import enum
from collections import deque
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from kvevents.server.errors import HttpError, is_openai
from kvevents.server.proxy.deadlines import NEVER
from kvevents.server.proxy.heads import Headers, own_head
from kvevents.server.proxy.request import Request

if TYPE_CHECKING:
    from kvevents.server.proxy.proxy import Proxy

LINGER_S = 2.0
"""How long the rest of a refused request is read and thrown away: a socket closed with unread bytes in it is reset, and
the client would never see why it was refused."""


class Phase(enum.Enum):
    """What the connection waits for."""

    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    ANSWER = enum.auto()
    LINGER = enum.auto()


class Answer(Protocol):
    """What is being done about one request. It calls `ClientConnection.answered` when its reply is written."""

    def start(self) -> None: ...
    def client_left(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def cut(self) -> None: ...
    def drain(self) -> None: ...


class ClientConnection(asyncio.Protocol):
    """Reads requests, has them answered one after the other, and keeps the limits.

    A request for a worker becomes an `Exchange` of the data plane, any other a call of the ASGI application: one
    connection may mix them, and neither knows of the other. Requests sent ahead (pipelined) wait, and nothing more is
    read from the client until their turn comes.
    """

    def __init__(self, proxy: "Proxy") -> None:
        self._proxy = proxy
        self._settings = proxy.settings
        self._parser = httptools.HttpRequestParser(self)
        self._phase = Phase.IDLE
        self._request: Request | None = None
        self._ready: deque[Request] = deque()
        self._answer: Answer | None = None
        self._refusal: HttpError | None = None
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._incoming = 0
        self._is_reading = True
        self._is_resuming_body = False
        self._is_ending = False
        self._is_in_head = False
        self._new_heads = 0
        self.is_writable = True
        self.deadline = NEVER

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.write = self.transport.write
        peer = self.transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else ""
        if not self._proxy.welcome(self):
            self._phase = Phase.LINGER
            error = HttpError(503, "too_many_connections", "the router has no room for another connection")
            self.reply(error.status, error.headers, error.body(openai=True), keep_alive=False)
            self.transport.close()
            return
        self.deadline = self._proxy.now() + self._settings.head_timeout_s

    def data_received(self, data: bytes) -> None:
        if self._phase is Phase.LINGER or self._refusal is not None:
            return
        if self._phase is Phase.IDLE:
            self._phase = Phase.HEAD
            self.deadline = self._proxy.now() + self._settings.head_timeout_s
        self._incoming = len(data)
        self._new_heads = 0
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._refusal = self._refusal or _not_http(error)
        is_one_head = not self._new_heads or (self._new_heads == 1 and self._phase is Phase.HEAD)
        if self._is_in_head and is_one_head:  # else some of what came belongs to other requests
            self._head_bytes += self._incoming
            if self._head_bytes > self._settings.max_head_bytes:
                self._refusal = self._refusal or _head_too_large()
        self._advance()

    def pause_writing(self) -> None:
        self.is_writable = False
        if self._answer is not None:
            self._answer.pause()
        if self._phase is not Phase.LINGER:
            self.deadline = self._proxy.now() + self._settings.write_timeout_s

    def resume_writing(self) -> None:
        self.is_writable = True
        if self._phase is Phase.ANSWER:
            self.deadline = NEVER
        elif self._phase is not Phase.LINGER:
            self._wait_for_request()
        if self._answer is not None:
            self._answer.resume()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._proxy.farewell(self)
        self._forget_request()
        for request in self._ready:
            self._proxy.release(request)
        self._ready.clear()
        del self._parser  # the two know each other
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.client_left()

    # What the server calls.

    def shutdown(self) -> None:
        """End once what is open has been answered."""
        self._proxy.is_draining = True
        self._is_ending = True
        if self._answer is not None:
            self._answer.drain()
        elif self._phase is Phase.IDLE:
            self.transport.close()

    def late(self) -> None:
        """The time for what it waits for is over."""
        counters = self._proxy.counters
        self.deadline = NEVER
        if not self.is_writable:
            counters.client_stalled += 1
            self.transport.abort()
        elif self._phase is Phase.HEAD:
            counters.slow_heads += 1
            self._refuse(HttpError(408, "head_timeout", "the request's head took too long"))
        elif self._phase is Phase.BODY:
            counters.slow_bodies += 1
            self._refuse(HttpError(408, "body_timeout", "the request's body took too long"))
        else:
            counters.idle_closed += self._phase is Phase.IDLE
            self.transport.close()

    def cut(self) -> None:
        """The process ends."""
        if self._answer is not None:
            self._answer.cut()
        self.transport.close()

    # What an answer calls.

    def answered(self, *, keep_alive: bool) -> None:
        """The reply is written: go on with the next request, or close."""
        self._answer = None
        if not keep_alive or self._is_ending:
            self.transport.close()
            return
        if not self._ready:
            self._wait_for_request()
        if self._ready or self._refusal is not None or not self._is_reading:
            # Not from here: a thousand requests sent ahead would be a thousand calls deep.
            asyncio.get_running_loop().call_soon(self._advance)

    def keeps_alive(self, request: Request) -> bool:
        """Whether the connection stays open after the answer to a request."""
        return request.keep_alive and not request.is_http_1_0 and not self._is_ending

    def reply(self, status: int, headers: Headers, body: bytes, *, keep_alive: bool) -> None:
        """Write a whole reply of our own."""
        own = [*headers, *self._proxy.date(), (b"content-length", b"%d" % len(body))]
        if not keep_alive:
            own.append((b"connection", b"close"))
        self.write(own_head(status, own) + body)

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._new_heads += 1
        self._head_bytes = 0
        self._target = b""
        self._headers = []

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_resuming_body:
            return
        self._headers.append((name, value))
        if len(self._headers) > self._settings.max_headers:
            self._refusal = _head_too_large()
            raise self._refusal

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if self._is_resuming_body:
            return
        most = self._settings.max_head_bytes
        if (self._incoming > most or not self._new_heads) and self._head_size() > most:
            self._refusal = _head_too_large()
            raise self._refusal
        request = Request(
            self._parser.get_method(),
            self._target,
            self._headers,
            is_http_1_0=self._parser.get_http_version() == "1.0",
            keep_alive=self._parser.should_keep_alive(),
        )
        self._request = request
        if self._phase is Phase.HEAD:
            self._phase = Phase.BODY
            self.deadline = self._proxy.now() + self._settings.body_timeout_s
        try:
            self._proxy.admit_head(request, self._peer)
        except HttpError as error:
            request.refuse(error)
            if error.code == "bad_http":
                self._refusal = error
                raise
        else:
            assert request.head is not None, "a head was admitted"
            if request.head.expects_continue:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, piece: bytes) -> None:
        request = self._request
        if request is None or request.refusal is not None:
            return
        try:
            self._proxy.admit_body(request, len(piece))
        except HttpError as error:
            request.refuse(error)
        else:
            request.add(piece)

    def on_message_complete(self) -> None:
        request = self._request
        if request is None or (self._parser.should_upgrade() and request.head is not None and request.head.length != 0):
            return  # the head alone, see `_feed`
        request.complete()
        self._request = None
        self._ready.append(request)
        self._phase = Phase.ANSWER
        if self.is_writable:
            self.deadline = NEVER

    def _feed(self, data: bytes) -> None:
        """Parse.

        A client may ask for another protocol (`Upgrade: h2c` is what some send with every first request). It gets
        HTTP/1.1, as it must expect. The parser stops there, before the body: another one reads on.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            self._parser = httptools.HttpRequestParser(self)
            request = self._request
            if request is not None and request.head is not None:
                length = request.head.length
                framing = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
                self._is_resuming_body = True
                self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
                self._is_resuming_body = False
            if rest:
                self._feed(rest)

    def _advance(self) -> None:
        """Begin the next answer, if nothing is being answered."""
        if self.transport.is_closing():
            return
        while self._answer is None and self._ready and not self.transport.is_closing():
            request = self._ready.popleft()
            if request.refusal is not None:
                self._answer_refused(request, request.refusal)
            else:
                self._answer = self._proxy.answer(self, request)
                self._answer.start()
        if self._answer is None and not self._ready:
            refusal = self._refusal or (self._request.refusal if self._request is not None else None)
            if refusal is not None:
                self._refuse(refusal)
                return
        self._set_reading(not self._ready)

    def _wait_for_request(self) -> None:
        """Nothing is being answered: what comes next, or the rest of it, has its time."""
        now, settings = self._proxy.now(), self._settings
        if self._request is not None:
            self._phase, deadline = Phase.BODY, now + settings.body_timeout_s
        elif self._is_in_head:
            self._phase, deadline = Phase.HEAD, now + settings.head_timeout_s
        else:
            self._phase, deadline = Phase.IDLE, now + settings.keep_alive_s
        if self.is_writable:
            self.deadline = deadline

    def _answer_refused(self, request: Request, error: HttpError) -> None:
        """Answer a request whose body came all the same, so that the connection can go on."""
        self._proxy.counters.reject(error.code)
        self._proxy.release(request)
        keep_alive = self.keeps_alive(request)
        self.reply(error.status, error.headers, error.body(openai=is_openai(request.path)), keep_alive=keep_alive)
        self.answered(keep_alive=keep_alive)

    def _refuse(self, error: HttpError) -> None:
        """Say why, read no more requests, and close when the client has had time to hear it."""
        self._proxy.counters.reject(error.code)
        self._forget_request()
        self._phase = Phase.LINGER
        self.deadline = self._proxy.now() + LINGER_S
        self.reply(error.status, error.headers, error.body(openai=True), keep_alive=False)
        self._set_reading(True)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _forget_request(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._proxy.release(request)

    def _head_size(self) -> int:
        """Length of the request's line and headers, about."""
        return sum(len(name) + len(value) + 4 for name, value in self._headers) + len(self._target)

    def _set_reading(self, is_reading: bool) -> None:
        if is_reading is not self._is_reading and not self.transport.is_closing():
            self._is_reading = is_reading
            (self.transport.resume_reading if is_reading else self.transport.pause_reading)()


def _not_http(error: Exception) -> HttpError:
    return HttpError(400, "bad_http", f"expected a request in HTTP/1.1: {error}")


def _head_too_large() -> HttpError:
    return HttpError(431, "head_too_large", "the request's headers are too many or too long")
