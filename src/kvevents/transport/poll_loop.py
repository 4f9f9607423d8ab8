"""One thread that serves many sockets."""

import threading
from collections import deque
from collections.abc import Callable

import zmq

from kvevents.transport.sockets import ZmqSocket
from kvevents.transport.wakeup import Wakeup

_LONGEST_S = 3600.0
"""A wait that is longer, or endless, is begun again."""


class PollLoop:
    """Sockets and what is called when one is readable.

    `call_soon` may be called by any thread; everything else belongs to the thread that calls `turn`.
    """

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._handlers: dict[ZmqSocket, Callable[[], None]] = {}
        self._wakeup = Wakeup()
        self._calls: deque[Callable[[], None]] = deque()
        self._poller.register(self._wakeup, zmq.POLLIN)

    def register(self, socket: ZmqSocket, handler: Callable[[], None]) -> None:
        """Calls `handler` whenever `socket` is readable; it must read, or be called again."""
        self._handlers[socket] = handler
        self._poller.register(socket, zmq.POLLIN)

    def unregister(self, socket: ZmqSocket) -> None:
        """Forgets a socket; one that is not registered is none of its business."""
        if self._handlers.pop(socket, None) is not None:
            self._poller.unregister(socket)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Has the loop's thread make a call, in order with others."""
        self._calls.append(call)
        self._wakeup.set()

    def turn(self, timeout_s: float | None) -> None:
        """Waits until something happens (None: as long as it takes), and handles all of it once."""
        timeout_ms = None if timeout_s is None else max(0, int(min(timeout_s, _LONGEST_S) * 1000) + 1)
        ready = [socket for socket, _ in self._poller.poll(timeout_ms)]
        if not all(isinstance(socket, zmq.Socket) for socket in ready):
            self._wakeup.clear()
        while self._calls:
            self._calls.popleft()()
        for socket in ready:
            handler = self._handlers.get(socket) if isinstance(socket, zmq.Socket) else None
            if handler is not None:  # a handler before it may have closed it
                handler()

    def close(self) -> None:
        """Makes the calls that are left and closes what the loop itself opened."""
        while self._calls:
            self._calls.popleft()()
        self._wakeup.close()


class Outcome:
    """The end of something that another thread does, to wait for."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._done = threading.Event()

    def __call__(self) -> None:
        try:
            self._call()
        finally:
            self._done.set()

    def wait(self) -> None:
        """Blocks until it is done."""
        self._done.wait()
