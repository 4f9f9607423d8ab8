"""The connections to the workers."""

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from kvevents.server.proxy.settings import ProxySettings
from kvevents.server.proxy.upstream import Upstream

KEEP_ALIVE_S = 60.0
"""Engines close an idle connection after 5 s to minutes, and what they close is not used again. One that is closed in
the moment it is used is opened anew (`Delivery.reconnect`); giving each up before any engine could would have every
burst wait for connections that were there a moment ago."""


class Pool:
    """Keeps connections open between requests; lives on one event loop.

    Attributes:
        opened: connections made since the start.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._idle: dict[str, list[Upstream]] = {}
        self._tls: ssl.SSLContext | None = None
        self.opened = 0

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return sum(len(connections) for connections in self._idle.values())

    def take(self, url: str) -> Upstream | None:
        """The connection used last, if there is one that the worker has not closed yet."""
        connections = self._idle.get(url)
        if connections:
            oldest = time.monotonic() - KEEP_ALIVE_S
            while connections:
                upstream = connections.pop()
                if upstream.is_open and upstream.idle_since > oldest:
                    return upstream
                upstream.drop()
        return None

    def give_back(self, upstream: Upstream) -> None:
        """Keep a connection whose reply was complete."""
        if upstream.is_open:
            upstream.is_used = True
            upstream.idle_since = time.monotonic()
            idle = self._idle.get(upstream.url)
            if idle is None:
                self._idle[upstream.url] = [upstream]
            else:
                idle.append(upstream)

    def connect(
        self, url: str, on_connected: Callable[[Upstream], None], on_refused: Callable[[str], None]
    ) -> "asyncio.Task[None]":
        """Open a connection and say what came of it, unless the task is cancelled before: that is for whoever waits."""
        return asyncio.get_running_loop().create_task(self._connect(url, on_connected, on_refused))

    def expire(self) -> None:
        """Close what has been idle for too long."""
        oldest = time.monotonic() - KEEP_ALIVE_S
        for url, connections in list(self._idle.items()):
            fresh = [one for one in connections if one.is_open and one.idle_since > oldest]
            if len(fresh) < len(connections):
                for one in set(connections).difference(fresh):
                    one.drop()
                if fresh:
                    self._idle[url] = fresh
                else:
                    del self._idle[url]

    def close(self) -> None:
        """Close all that are idle."""
        for connections in self._idle.values():
            for one in connections:
                one.drop()
        self._idle.clear()

    async def _connect(
        self, url: str, on_connected: Callable[[Upstream], None], on_refused: Callable[[str], None]
    ) -> None:
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        try:
            _, upstream = await asyncio.get_running_loop().create_connection(
                lambda: Upstream(url, max_head_bytes=self._settings.max_head_bytes),
                parts.hostname or "",
                parts.port or (443 if is_tls else 80),
                ssl=self._context() if is_tls else None,
            )
        except OSError as error:
            on_refused(f"no connection ({_why(error)})")
        else:
            self.opened += 1
            on_connected(upstream)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _why(error: OSError) -> str:
    """The system's word for it, without the address that asyncio puts into its own."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else type(error).__name__
