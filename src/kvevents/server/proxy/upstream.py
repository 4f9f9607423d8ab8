"""One connection to a worker."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeAlias, cast

import httptools

from kvevents.server.proxy.heads import MalformedReplyError, ReplyHead, read_reply_head

MAX_INTERIM = 16
"""Replies that announce another one (100, 103): more in a row are none."""


Taker: TypeAlias = Callable[[bytes], object]
"""Is given a body piece by piece, without the framing of chunks."""


class ReplySink(Protocol):
    """Who waits for a reply."""

    def on_head(self, head: ReplyHead) -> Taker:
        """Status and headers are there; who takes the body."""

    def on_data(self, data: bytes, *, is_complete: bool) -> None:
        """The same bytes as they came, once the taker had what they hold. When complete, the connection is gone."""

    def on_failure(self, reason: str, *, is_garbage: bool, has_begun: bool) -> None:
        """There is no reply, or no more of it; the connection is gone. `has_begun`: some bytes of it had come."""


class Upstream(asyncio.Protocol):
    """Sends a request and reads the reply, one after the other, for as long as the worker keeps it open.

    The parser sees every byte before anyone else does, so that the end of a reply is known exactly: bytes after it
    are nobody's answer, and a connection that brings some is not used again.

    Attributes:
        url: base URL of the worker.
        is_used: whether it has carried a request before, and the worker may be closing it this moment.
        idle_since: when its last reply was complete, monotonic seconds.
    """

    __slots__ = (
        "_complete",
        "_head",
        "_headers",
        "_interim",
        "_is_between",
        "_keep",
        "_max_head_bytes",
        "_messages",
        "_parser",
        "_passed",
        "_passed_between",
        "_reply",
        "_sink",
        "_take",
        "_transport",
        "idle_since",
        "is_used",
        "url",
    )

    def __init__(self, url: str, *, max_head_bytes: int) -> None:
        self.url = url
        self.is_used = False
        self.idle_since = 0.0
        self._is_between = self._passed_between = True
        self._passed = b""
        self._max_head_bytes = max_head_bytes
        self._sink: ReplySink | None = None
        self._parser = httptools.HttpResponseParser(self)

    @property
    def is_open(self) -> bool:
        """Whether it can carry a request."""
        return not self._transport.is_closing()

    @property
    def is_at_boundary(self) -> bool:
        """Whether what was passed on of a body in chunks ends with a whole one: another may follow it."""
        return self._passed_between and self._passed.endswith(b"\r\n")

    def send(self, sink: ReplySink, head: bytes, body: bytes) -> None:
        """Send a request; the sink hears of its reply."""
        self._sink = sink
        self._head = b""
        self._reply: ReplyHead | None = None
        self._messages = 0
        self._interim = 0
        self._complete = False
        self._transport.writelines((head, body))

    def drop(self) -> None:
        """Close it at once; the sink hears no more."""
        self._sink = None
        self._transport.abort()

    def pause_reading(self) -> None:
        """Let the worker wait."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Let it go on."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._sink is None:  # an answer to nothing
            self._transport.abort()
            return
        try:
            if self._reply is None:
                data = self._read_head(data)
            if data:
                self._parser.feed_data(data)
        except MalformedReplyError as error:
            self._fail(str(error), is_garbage=True)
            return
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"answered with something that is not HTTP ({type(error).__name__})", is_garbage=True)
            return
        if self._messages > 1:
            self._fail("sent more than its answer", is_garbage=True)
        elif self._complete:
            self._release().on_data(data, is_complete=True)
        elif data:
            self._passed, self._passed_between = data, self._is_between
            self._sink.on_data(data, is_complete=False)

    def connection_lost(self, exc: Exception | None) -> None:
        del self._parser  # the two know each other
        sink, self._sink = self._sink, None
        if sink is None:
            return
        if self._reply is not None and self._reply.ends_with_connection and exc is None:
            sink.on_data(b"", is_complete=True)
        else:
            sink.on_failure(
                "closed the connection before its answer was complete",
                is_garbage=False,
                has_begun=self._reply is not None or bool(self._head),
            )

    def _fail(self, reason: str, *, is_garbage: bool) -> None:
        sink, self._sink = self._sink, None
        self._transport.abort()
        if sink is not None:
            sink.on_failure(reason, is_garbage=is_garbage, has_begun=True)

    def _release(self) -> ReplySink:
        """The reply is complete: whom it is for, who has no more to expect of this connection."""
        sink, self._sink = self._sink, None
        assert sink is not None, "a reply is read only while somebody waits for it"
        if not self._keep or self._transport.get_write_buffer_size():  # answered before it was asked to the end
            self._transport.abort()
        return sink

    def _read_head(self, data: bytes) -> bytes:
        """What follows the head in `data`; nothing while the head is not complete."""
        data = self._head + data if self._head else data
        while True:
            end = data.find(b"\r\n\r\n") + 4
            if end == 3:
                if len(data) > self._max_head_bytes:
                    raise MalformedReplyError("answered with a head that does not end")
                if data[:5] != b"HTTP/"[: len(data)]:
                    raise MalformedReplyError("answered with something that is not HTTP")
                self._head = data
                return b""
            self._headers: list[tuple[bytes, bytes]] = []
            self._messages = 0
            self._complete = False
            self._is_between = True
            self._parser.feed_data(data[:end])
            status = self._parser.get_status_code()
            rest = data[end:]
            if status >= 200:
                break
            data = rest  # an interim reply: the client did not ask for it
            self._complete = False
            self._messages = 0
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise MalformedReplyError("sent nothing but interim replies")
        reply = read_reply_head(status, data[: data.find(b"\r\n")], self._headers)
        self._reply = reply
        self._head = b""
        assert self._sink is not None, "a reply is read only while somebody waits for it"
        self._take = self._sink.on_head(reply)
        return rest

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._messages += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reply is None:  # else a trailer, which passes with the rest
            self._headers.append((name, value))

    def on_chunk_header(self) -> None:
        self._is_between = False

    def on_chunk_complete(self) -> None:
        self._is_between = True

    def on_body(self, piece: bytes) -> None:
        self._take(piece)

    def on_message_complete(self) -> None:
        self._complete = True
        self._keep = self._parser.should_keep_alive()  # it is forgotten with the message
