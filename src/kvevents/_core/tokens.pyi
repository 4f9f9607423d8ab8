"""`kvevents._core.tokens`: token sequences as the caches compare and keep them."""

from collections.abc import Sequence
from typing import TypeAlias, final

from _typeshed import ReadableBuffer

_Tokens: TypeAlias = Sequence[int] | ReadableBuffer

@final
class TokenPages:
    """The whole pages of a token sequence; a tail shorter than a page is not part of it.

    A page has `page_size` units: tokens, or pairs of neighbours where `bigram`, so that n tokens make n - 1 units and
    the last token of a page is the first of the next. A contiguous int32, uint32, int64 or uint64 buffer is borrowed:
    it must not change while the object lives. Everything else is copied once. Can be passed wherever tokens can.

    Raises:
        ValueError: a token id is negative or over 2^64-1, or the page size is 0.
        TypeError: something that is no integer is among the tokens.
    """

    def __new__(cls, tokens: _Tokens, page_size: int, *, bigram: bool = False) -> TokenPages: ...
    def __len__(self) -> int:
        """Whole pages."""

    @property
    def token_count(self) -> int:
        """Tokens in the sequence, the tail included."""

    def key(self, page: int, /) -> bytes:
        """Bytes that are equal exactly where the tokens of two pages are, whatever buffers they came in.

        They are the page's tokens, little-endian, all in 4 bytes if they fit, else in 8.
        """

    def common(self, other: TokenPages, start: int, /) -> int:
        """How many of these pages, from the first, equal the pages of `other` from `start`."""

    def cut(self, start: int, end: int, /) -> TokenPages:
        """A copy of pages `start..end`, as narrow as its ids allow (4 or 8 bytes a token)."""
