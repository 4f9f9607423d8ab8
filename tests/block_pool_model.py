"""vLLM's block pool in plain Python: what the core is compared with."""

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

Digest = bytes


def head(major: int, value: int) -> bytes:
    """The head of a CBOR value in its smallest form."""
    if value < 24:
        return bytes([major << 5 | value])
    for mark, (size, code) in enumerate([(1, "B"), (2, "H"), (4, "I"), (8, "Q")]):
        if value < 256**size:
            return bytes([major << 5 | 24 + mark]) + struct.pack(f">{code}", value)
    raise OverflowError(value)


def text(value: str) -> bytes:
    """A CBOR text."""
    return head(3, len(value.encode())) + value.encode()


def digests(tokens: Sequence[int], page_size: int, *, seed: str, salt: str | None = None) -> list[Digest]:
    """SHA-256 over CBOR of each whole page, chained."""
    above = hashlib.sha256(text(seed)).digest()
    found = []
    for start in range(0, len(tokens) - page_size + 1, page_size):
        extra = b"\xf6"
        if salt and not start:
            extra = head(4, 1) + head(4, 2) + text("cache_salt") + text(salt)
        ids = head(4, page_size) + b"".join(head(0, token) for token in tokens[start : start + page_size])
        above = hashlib.sha256(head(4, 3) + head(2, 32) + above + ids + extra).digest()
        found.append(above)
    return found


def block_id(digest: Digest) -> int:
    """What events call a page."""
    return int.from_bytes(digest[-8:], "big")


class Stored(NamedTuple):
    """Pages that are announced together."""

    ids: list[int]
    parent: int | None


class Removed(NamedTuple):
    """A page that is gone."""

    id: int


class PoolModel:
    """Blocks, who holds them, what is in them, and in which order they are reused."""

    def __init__(self, num_blocks: int) -> None:
        self.queue = list(range(1, num_blocks))
        self.holders = dict.fromkeys(range(1, num_blocks), 0)
        self.content: dict[int, Digest] = {}  # in the order of publishing
        self.events: list[Stored | Removed] = []

    def lookup(self, pages: Sequence[Digest]) -> list[int]:
        found = []
        for page in pages:
            oldest = next((block for block, digest in self.content.items() if digest == page), None)
            if oldest is None:
                break
            found.append(oldest)
        return found

    def hold(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if not self.holders[block]:
                self.queue.remove(block)
            self.holders[block] += 1

    def take(self, count: int) -> list[int]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        assert len(taken) == count
        for block in taken:
            self.forget(block)
            self.holders[block] = 1
        return taken

    def forget(self, block: int) -> None:
        if (digest := self.content.pop(block, None)) is not None:
            self.events.append(Removed(block_id(digest)))

    def publish(self, blocks: Sequence[int], pages: Sequence[Digest], parent: Digest | None) -> None:
        self.content.update(zip(blocks, pages, strict=True))
        self.events.append(Stored([block_id(page) for page in pages], None if parent is None else block_id(parent)))

    def release(self, blocks: Sequence[int]) -> None:
        free = []
        for block in reversed(blocks):
            self.holders[block] -= 1
            if not self.holders[block]:
                free.append(block)
        bare = [block for block in free if block not in self.content]
        self.queue = bare + self.queue + [block for block in free if block in self.content]

    def evict(self, count: int) -> None:
        for block in [block for block in self.queue if block in self.content][:count]:
            self.forget(block)
