"""Wakes an event loop from a thread that must not be held up."""

import queue
import threading
from collections.abc import Callable


class Bell:
    """Has something called soon; `ring` costs a microsecond.

    An event loop is woken through a socket, and a thread that writes to one lets go of the GIL and may get it back only
    when the loop has done its work. So a thread in between does the writing.

    Args:
        call: what is called, by the thread in between, once or more often after `ring`.
        name: of the thread.
    """

    def __init__(self, call: Callable[[], object], name: str) -> None:
        self._call = call
        self._rung: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ring(self) -> None:
        """Has the call made soon."""
        self._rung.put(True)

    def close(self) -> None:
        """Makes the calls that are left and ends the thread. Idempotent."""
        self._rung.put(False)
        self._thread.join()

    def _run(self) -> None:
        while self._rung.get():
            self._call()
