"""What an engine reports at the end of a reply, read from the bytes that pass."""

import re
from typing import NamedTuple

TAIL_BYTES = 4096
"""Usage stands at the end of a reply, or in its last data chunk: this much is kept."""

_PROMPT_KEYS = (b'"prompt_tokens"', b'"input_tokens"')
"""As completions and chats call it, and as responses do."""

_CACHED_KEYS = (b'"cached_tokens"',)
_NUMBER = re.compile(rb"\s*:\s*(\d{1,10})(?![\d.eE])")
"""More digits no prompt has: they would outweigh all that was ever counted."""
_BACKSLASH = ord("\\")


class Usage(NamedTuple):
    """Figures of one reply."""

    prompt_tokens: int
    cached_tokens: int


class UsageTail:
    """Keeps the end of a passing reply; holds nothing up."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        """Take note of a chunk that was passed on."""
        self._parts.append(chunk)
        self._size += len(chunk)
        if self._size > 4 * TAIL_BYTES:
            self._shorten()

    def usage(self) -> Usage | None:
        """The last figures reported; None when the reply has none, or only half of them."""
        tail = self._shorten()
        cached = _last_number(tail, _CACHED_KEYS)
        prompt = None if cached is None else _last_number(tail, _PROMPT_KEYS)
        if cached is None or prompt is None or cached > prompt:  # it contradicts itself: nothing can be held against it
            return None
        return Usage(prompt, cached)

    def prompt_tokens(self) -> int | None:
        """The prompt's length as reported last; engines say it by default, what was cached only when told to."""
        return _last_number(self._shorten(), _PROMPT_KEYS)

    def ends_an_event(self) -> bool:
        """Whether a server-sent event may follow what was passed on."""
        tail = self._shorten()
        return tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")) or not tail

    def _shorten(self) -> bytes:
        """What is kept, now in one piece."""
        parts = self._parts
        if len(parts) == 1 and self._size <= TAIL_BYTES:
            return parts[0]
        tail = b"".join(parts)[-TAIL_BYTES:]
        self._parts = [tail]
        self._size = len(tail)
        return tail


def _last_number(tail: bytes, keys: tuple[bytes, ...]) -> int | None:
    """The number at the last of these keys; one within generated text is not meant, and its quotes are escaped."""
    for key in keys:
        end = len(tail)
        while (start := tail.rfind(key, 0, end)) >= 0:
            found = _NUMBER.match(tail, start + len(key))
            if found is not None and not (start and tail[start - 1] == _BACKSLASH):
                return int(found[1])
            end = start
    return None
