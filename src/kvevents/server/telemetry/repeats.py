"""Log lines that say the same again and again."""

import logging
import time
from collections.abc import Callable

MAX_REMEMBERED = 256
"""Different lines that are remembered at once; the longest silent one is forgotten."""


class RepeatFilter(logging.Filter):
    """Lets each line through once in a while; what was left out is counted, and said by the next one like it.

    Requests of the access log are never left out.

    Args:
        interval_s: how long a line keeps its likes back; 0 lets all through.
        clock: seconds that only grow.

    Attributes:
        left_out: lines that were not written.
    """

    def __init__(self, interval_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.left_out = 0
        self._interval_s = interval_s
        self._clock = clock
        self._said: dict[tuple[str, int, str], _Said] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written. Called under the lock of its handler."""
        if self._interval_s == 0 or hasattr(record, "facts"):
            return True
        message = record.getMessage()
        key = (record.name, record.levelno, message)
        now = self._clock()
        said = self._said.pop(key, None)
        if said is not None and now < said.at + self._interval_s:
            said.left_out += 1
            self.left_out += 1
            self._said[key] = said
            return False
        if said is not None and said.left_out:
            record.msg = f"{message} ({said.left_out} more like it in the last {now - said.at:.0f} s)"
            record.args = None
        self._said[key] = _Said(now)
        if len(self._said) > MAX_REMEMBERED:
            del self._said[next(iter(self._said))]
        return True


class _Said:
    __slots__ = ("at", "left_out")

    def __init__(self, at: float) -> None:
        self.at = at
        self.left_out = 0
