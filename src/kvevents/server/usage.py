"""What an engine reports at the end of a reply, read from the bytes that pass."""

import re
from typing import NamedTuple

TAIL_BYTES = 4096
"""Usage stands at the end of a reply, or in its last data chunk: this much is kept."""

# A quote inside generated text is escaped, so an unescaped key is the engine's own.
_CACHED = re.compile(rb'(?<!\\)"cached_tokens"\s*:\s*(\d+)')
_PROMPT = re.compile(rb'(?<!\\)"prompt_tokens"\s*:\s*(\d+)')


class Usage(NamedTuple):
    """Figures of one reply."""

    prompt_tokens: int
    cached_tokens: int


class UsageTail:
    """Keeps the end of a passing reply; holds nothing up."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        """Take note of a chunk that was passed on."""
        self._tail = chunk[-TAIL_BYTES:] if len(chunk) >= TAIL_BYTES else (self._tail + chunk)[-TAIL_BYTES:]

    def usage(self) -> Usage | None:
        """The last figures reported; None when the reply has none, or only half of them."""
        prompt, cached = _PROMPT.findall(self._tail), _CACHED.findall(self._tail)
        return Usage(int(prompt[-1]), int(cached[-1])) if prompt and cached else None

    def ends_an_event(self) -> bool:
        """Whether a server-sent event may follow what was passed on."""
        return self._tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")) or not self._tail
