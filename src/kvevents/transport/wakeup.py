"""Wakes a thread that waits in a ZMQ poller."""

import contextlib
import socket


class Wakeup:
    """A socket pair that makes a poller return; any thread may call `set`, the polling thread calls `clear`."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """What the poller watches for reading."""
        return self._reader.fileno()

    def set(self) -> None:
        """Wakes the poller; never blocks. After `close` it does nothing."""
        with contextlib.suppress(OSError):  # full: it is awake already
            self._writer.send(b"\0")

    def clear(self) -> None:
        """Takes back every `set` so far."""
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass

    def close(self) -> None:
        """Closes both ends; idempotent."""
        self._reader.close()
        self._writer.close()
