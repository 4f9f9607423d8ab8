"""What moves the bytes of blocks between tiers, and keeps those of the lowest one."""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from kvevents.caches.node import Node
from kvevents.caches.transfers import Copying
from kvevents.events import StorageMedium

FULL = "full"
"""The component that every block has."""


class StoredBlock(NamedTuple):
    """A block as a store knows it."""

    key: bytes
    """32 bytes that name what is in it: its tokens, all before them, salt and extra key."""
    component: str
    """`full`, `sliding_window` or `mamba`: what is kept of it."""
    parent: bytes | None = None
    """The key of the block before it; None for the first of a prompt."""
    tokens: bytes = b""
    """Its tokens, 8 bytes each, one token more than units for pairs; none but for full attention."""
    extra_key: str | None = None
    """Of its namespace."""
    cache_salt: str | None = None
    """Of its namespace: a secret."""


class TierStore(Protocol):
    """Copies blocks between device and host memory, and keeps them below host memory.

        device slots --copy--> host slots --write--> blocks, by key
                     <--copy--            <--read---

    A store serves one cache. Slots come as in that component's allocator: one a unit, for `mamba` one a state. Where a
    call returns a future, the slots stay as they are until it is done; any exception, raised or in the future, means
    that nothing has arrived. Implement it for memory on a GPU, or for a pool that several engines share.
    """

    @property
    def medium(self) -> StorageMedium:
        """What the tier is called in events: `DISK` or `EXTERNAL`."""

    @property
    def capacity(self) -> int:
        """Blocks that there is room for, of each component."""

    def copy(self, component: str, source: "array[int]", target: "array[int]", *, to_host: bool) -> Copying:
        """Begin to copy from slots of the device to slots in host memory, or back."""

    def write(self, blocks: Sequence[StoredBlock], source: "array[int]") -> Copying:
        """Begin to keep blocks of one component, from host slots: as many a block as a page has, or one a state."""

    def read(self, blocks: Sequence[StoredBlock], target: "array[int]") -> Copying:
        """Begin to copy blocks back to host slots."""

    def remove(self, blocks: Sequence[StoredBlock]) -> None:
        """Forget blocks, be they there or not."""

    def blocks(self) -> Iterable[StoredBlock]:
        """All blocks there are whole, in any order: what a process before this one has left."""


def blocks_of(node: Node, component: str) -> list[StoredBlock]:
    """What a store is told of the blocks of a node: all for what is kept by the page, else the last."""
    keys = [block_key(node, digest) for digest in node.chain.digests]
    if component == "mamba":
        return [StoredBlock(keys[-1], component)]
    if component != FULL:
        return [StoredBlock(key, component) for key in keys]
    parent = node.parent
    assert parent is not None, "a root has no blocks"
    above = None if parent.is_root else block_key(parent, parent.chain.digests[-1])
    return [
        StoredBlock(key, component, before, tokens, node.chain.extra_key, node.chain.cache_salt)
        for key, before, tokens in zip(keys, [above, *keys], tokens_of(node), strict=False)
    ]


def block_key(node: Node, digest: bytes) -> bytes:
    """The name of a block. Its digest knows its tokens and salt; an extra key, an adapter for instance, it does not."""
    extra_key = node.chain.extra_key
    if extra_key is None:
        return digest
    return hashlib.sha256(b"kvevents-block\0" + digest + extra_key.encode()).digest()


def tokens_of(node: Node) -> Iterator[bytes]:
    """The tokens of each page of a node, 8 bytes each."""
    count = node.length // len(node.pages) + node.chain.bigram
    for page in range(len(node.pages)):
        key = node.pages.key(page)
        tokens = array("I" if len(key) == 4 * count else "Q")
        tokens.frombytes(key)
        yield array("Q", tokens).tobytes()
