"""How far a command is, on stderr, and how it is told to end."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

_TERMINAL_S = 0.5
_PIPE_S = 10.0


class Pace:
    """A line that says how far it is: renewed in its place on a terminal, one more now and then elsewhere.

    Args:
        describe: the line, given the seconds since the line before and since the beginning.
    """

    def __init__(self, describe: Callable[[float, float], str]) -> None:
        self._describe = describe
        self._is_terminal = sys.stderr.isatty()
        self._begun = self._shown = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begun

    def tick(self) -> None:
        """Shows the line if it is time."""
        now = time.monotonic()
        if now - self._shown < (_TERMINAL_S if self._is_terminal else _PIPE_S):
            return
        line = self._describe(now - self._shown, now - self._begun)
        self._shown = now
        print(f"\r\x1b[K{line}" if self._is_terminal else line, end="" if self._is_terminal else "\n", file=sys.stderr)
        sys.stderr.flush()

    def end(self) -> None:
        """Leaves the line."""
        if self._is_terminal:
            print(file=sys.stderr, flush=True)


def amount(count: float) -> str:
    """A number with three digits that count."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.3g} "


@contextlib.contextmanager
def told_to_end(call: Callable[[], object] | None = None) -> Iterator[threading.Event]:
    """An event that is set by the first SIGINT or SIGTERM, after which a second one acts as usual.

    Args:
        call: made by the first signal, too.
    """
    ended = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]

    def restore() -> None:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)

    def end(_number: int, _frame: FrameType | None) -> None:
        restore()
        ended.set()
        if call is not None:
            call()

    for number in numbers:
        signal.signal(number, end)
    try:
        yield ended
    finally:
        restore()
