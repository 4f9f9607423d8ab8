"""Text to token ids and back."""

from array import array
from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def alphabet(self) -> Sequence[int]:
        """The ids that simulated outputs are drawn from."""
        ...

    def encode(self, text: str) -> "array[int]":
        """Token ids as an array of int64."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids of an output; concatenation commutes with it."""
        ...


class ByteTokenizer:
    """Each UTF-8 byte of the text is a token; its id is the byte plus `offset`."""

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset
        letters = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ,"
        self.alphabet: Sequence[int] = [byte + offset for byte in letters]

    def encode(self, text: str) -> "array[int]":
        data = text.encode()
        return array("q", map(self._offset.__add__, data) if self._offset else list(data))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(map((-self._offset).__add__, ids)).decode(errors="replace")
