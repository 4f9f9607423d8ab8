"""Does a tokenizer make of prompts what the engine makes of them?"""

from collections import deque
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["unknown", "agrees", "disagrees"]

WINDOW = 16
"""Prompts that a verdict goes by."""

ENOUGH = 3
"""Differences in the window from which on chance is no explanation."""

PROBE_EVERY = 16
"""While the two disagree, every so many prompts one is tokenized all the same, so that the end of it is seen."""


class Agreement:
    """Compares the engine's count of a prompt's tokens with ours, over the last prompts.

    A count that is the same shows little for one prompt and much for many: ids of another vocabulary or template come
    to other counts.
    """

    def __init__(self) -> None:
        self._last: deque[bool] = deque(maxlen=WINDOW)
        self._since_probe = 0
        self.example: str | None = None

    def observe(self, ours: int, engines: int) -> bool:
        """Note both counts of one prompt; whether they are the same."""
        is_same = ours == engines
        if not is_same:
            self.example = f"{ours} tokens here, {engines} in the engine"
        self._last.append(is_same)
        return is_same

    @property
    def verdict(self) -> Verdict:
        """How it stands."""
        if not self._last:
            return "unknown"
        different = len(self._last) - sum(self._last)
        return "disagrees" if different >= ENOUGH and 2 * different > len(self._last) else "agrees"

    def is_due(self) -> bool:
        """Whether the next prompt is to be tokenized."""
        if self.verdict != "disagrees":
            return True
        self._since_probe = (self._since_probe + 1) % PROBE_EVERY
        return self._since_probe == 0
