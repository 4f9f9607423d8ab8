"""One request to one worker."""

import asyncio
from typing import Protocol

from kvevents.server.proxy.pool import Pool
from kvevents.server.proxy.upstream import ReplySink, Upstream


class Sender(ReplySink, Protocol):
    """Who has a request delivered."""

    def on_sent(self) -> None:
        """The worker has a connection, and the request is on it."""

    def on_unreachable(self, reason: str, *, is_delivered: bool) -> None:
        """There is no connection. `is_delivered`: an earlier one may have carried the request all the same."""


class Delivery:
    """Finds a connection, sends the request on it, and lets its sender hear of the reply.

    A connection that was kept open may be closed by the worker in the very moment it is used again. That says nothing
    about the worker, so the request goes to it once more, on a new connection. It may have arrived the first time, and
    that too is remembered: it counts as delivered whatever comes of the second.

    Attributes:
        upstream: the connection; None while there is none.
        has_reconnected: whether the first connection turned out to be closed.
    """

    __slots__ = ("_body", "_head", "_is_paused", "_pool", "_sender", "_task", "_url", "has_reconnected", "upstream")

    def __init__(self, pool: Pool, sender: Sender, url: str, head: bytes, body: bytes) -> None:
        self._pool = pool
        self._sender = sender
        self._url = url
        self._head = head
        self._body = body
        self._task: asyncio.Task[None] | None = None
        self._is_paused = False
        self.upstream: Upstream | None = None
        self.has_reconnected = False

    @property
    def is_at_boundary(self) -> bool:
        """Whether the reply so far ends with a whole chunk."""
        return self.upstream is None or self.upstream.is_at_boundary

    def start(self) -> None:
        """Send on a connection that is there, or open one."""
        upstream = self._pool.take(self._url)
        if upstream is not None:
            self._send(upstream)
        else:
            self._connect()

    def reconnect(self, *, has_begun: bool) -> bool:
        """The connection failed: whether that is no failure of the worker, and the request is sent once more.

        Args:
            has_begun: whether anything of a reply had come.
        """
        upstream, self.upstream = self.upstream, None
        if upstream is None or not upstream.is_used or has_begun or self.has_reconnected:
            self.upstream = upstream
            return False
        self.has_reconnected = True
        self._connect()
        return True

    def let_go(self) -> None:
        """The reply has begun: keep the request no longer."""
        self._body = b""

    def complete(self) -> None:
        """The reply is complete: others may have the connection."""
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            if self._is_paused:
                upstream.resume_reading()
            self._pool.give_back(upstream)

    def drop(self) -> None:
        """End it at once."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self.upstream is not None:
            self.upstream.drop()

    def pause(self) -> None:
        """Let the worker wait."""
        self._is_paused = True
        if self.upstream is not None:
            self.upstream.pause_reading()

    def resume(self) -> None:
        """Let it go on."""
        self._is_paused = False
        if self.upstream is not None:
            self.upstream.resume_reading()

    def _connect(self) -> None:
        self._task = self._pool.connect(self._url, self._on_connected, self._on_refused)

    def _on_connected(self, upstream: Upstream) -> None:
        self._task = None
        self._send(upstream)

    def _on_refused(self, reason: str) -> None:
        self._task = None
        self._sender.on_unreachable(reason, is_delivered=self.has_reconnected)

    def _send(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self._sender.on_sent()
        upstream.send(self._sender, self._head, self._body)
        if self._is_paused:
            upstream.pause_reading()
