"""A worker's reply on its way to the client."""

from typing import TYPE_CHECKING

from kvevents.server.proxy.heads import ReplyHead
from kvevents.server.proxy.upstream import Taker
from kvevents.server.usage import UsageTail

if TYPE_CHECKING:
    from kvevents.server.proxy.connection import ClientConnection

HELD_BYTES = 256 * 2**10
"""An answer of at most this length that is not streamed is sent on when it is whole: until then another worker can
still take over, and what was found cached can be said in a header."""


class Reply:
    """Passes bytes on as they came, framing and all, and knows how to end when they stop coming.

    Attributes:
        head: status and headers, once they are there.
        tail: the end of what has come.
        is_begun: whether the client has something of it, so that no other reply is possible.
    """

    __slots__ = ("_client", "_held", "_is_http_1_0", "_unframed", "head", "is_begun", "tail")

    def __init__(self, client: "ClientConnection", *, is_http_1_0: bool) -> None:
        self._client = client
        self._is_http_1_0 = is_http_1_0
        self._held: list[bytes] = []
        self._unframed: list[bytes] | None = None
        self.head: ReplyHead | None = None
        self.tail = UsageTail()
        self.is_begun = False

    @property
    def status(self) -> int:
        """Of the reply; 0 while there is none."""
        return 0 if self.head is None else self.head.status

    @property
    def is_held(self) -> bool:
        """Whether something of it waits for the rest."""
        return bool(self._held)

    def begin(self, head: ReplyHead) -> Taker:
        """Take status and headers; nothing is sent yet. What is returned takes note of the body."""
        self.head = head
        if not (head.is_chunked and self._is_http_1_0):
            return self.tail.feed
        self._unframed = unframed = []  # no chunks for this client: the connection's end is the body's

        def feed(piece: bytes) -> None:
            self.tail.feed(piece)
            unframed.append(piece)

        return feed

    def hold(self, data: bytes) -> bool:
        """Whether to wait for the rest before anything is sent; `data` is kept then."""
        head = self.head
        if head is None or head.length is None or head.length > HELD_BYTES or head.is_event_stream:
            return False
        self._held.append(data)
        return True

    def send_head(self, lines: bytes, data: bytes, *, keep_alive: bool) -> None:
        """Send status and headers, with `lines` of our own, and what there is of the body, all at once."""
        head = self.head
        assert head is not None, "data comes after the head"
        self.is_begun = True
        first_line = head.first_line
        parts = [
            first_line if first_line.startswith(b"HTTP/1.1") else b"HTTP/1.1" + first_line[8:],
            b"\r\n",
            head.passed,
            b"transfer-encoding: chunked\r\n" if head.is_chunked and self._unframed is None else b"",
            lines,
            b"\r\n" if keep_alive else b"connection: close\r\n\r\n",
            *self._held,
            self._taken(data),
        ]
        self._held.clear()
        self._client.write(b"".join(parts))

    def send(self, data: bytes) -> None:
        """Send more of the body."""
        self._client.write(data if self._unframed is None else self._taken(data))

    def break_off(self, event: bytes, *, is_at_boundary: bool, keep_alive: bool) -> None:
        """End a reply in the middle: an event stream with an event that says so, of any other the length does.

        Args:
            event: that says so.
            is_at_boundary: whether the last chunk is whole.
            keep_alive: what the client was told of its connection: where the reply ends as it should, it may send the
                next request this moment.
        """
        head = self.head
        assert head is not None, "a reply that is begun has a head"
        is_framed = head.is_chunked and self._unframed is None
        if head.is_event_stream and head.length is None and (is_at_boundary or not is_framed):
            if not self.tail.ends_an_event():
                event = b"\n\n" + event
            if is_framed:
                event = b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)
            self._client.write(event)
            self._client.answered(keep_alive=keep_alive and is_framed)
        elif head.ends_with_connection or self._unframed is not None:
            self._client.transport.abort()  # an orderly end would make it look whole
        else:
            self._client.answered(keep_alive=False)

    def _taken(self, data: bytes) -> bytes:
        if self._unframed is None:
            return data
        data = b"".join(self._unframed)
        self._unframed.clear()
        return data
