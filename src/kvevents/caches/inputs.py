"""What callers may pass as token ids and as slots."""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    Buffer = Any  # `collections.abc.Buffer` comes with Python 3.12

Tokens: TypeAlias = Sequence[int] | Buffer
"""Token ids from 0 to 2^64-1: a list, an array, a numpy integer array or any buffer of integers. A contiguous buffer of
32 or 64-bit integers is read in place."""

Slots: TypeAlias = Sequence[int] | Buffer
"""Slots: an int64 buffer (copied as a whole) or any sequence of integers (copied one by one)."""


def check_labels(session_id: object, *counts: int) -> None:
    """Raise what recording would raise of an insert's labels, before the insert changes anything.

    Raises:
        TypeError: the session is no string, or a count no integer.
        UnicodeEncodeError: the session has no form in UTF-8.
    """
    if session_id is not None:
        if not isinstance(session_id, str):
            raise TypeError(f"session_id: expected a string or None, got {session_id!r}")
        session_id.encode()
    for count in counts:
        operator.index(count)
