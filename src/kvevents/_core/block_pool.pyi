"""`kvevents._core.block_pool`: see `kvevents.caches.block_pool`."""

from collections.abc import Sequence
from typing import Literal, TypeAlias, final

from _typeshed import ReadableBuffer

from kvevents._core.hashing import HashChain
from kvevents._core.recorder import EventRecorder
from kvevents._core.tokens import TokenPages

__all__ = ["BlockPool"]

_Blocks: TypeAlias = Sequence[int] | ReadableBuffer
# Public as kvevents.caches.block_pool.VllmHashScheme; stubs import no higher layer.
_Scheme: TypeAlias = Literal["vllm-sha256", "vllm-sha256-cbor", "vllm-xxhash", "vllm-xxhash-cbor", "vllm-builtin"]
_Tokens: TypeAlias = Sequence[int] | ReadableBuffer | TokenPages

@final
class BlockPool:
    """The blocks of a KV memory under vLLM's policy, announcing what changes.

    Blocks go in as an int64 buffer or a sequence of integers, from 1 (block 0 is a placeholder), and come out as an
    int64 memoryview. What cannot be done raises ValueError and changes nothing. Used by one thread.

    Args:
        num_blocks: blocks, the placeholder among them.
        page_size: tokens in a block.
        scheme: how blocks are hashed; one of vLLM's.
        recorder: where changes are announced.

    Raises:
        ConfigError: fewer than two blocks, not a scheme of vLLM, or a recorder for another page size.
    """

    def __new__(cls, num_blocks: int, page_size: int, scheme: _Scheme, recorder: EventRecorder) -> BlockPool: ...
    @property
    def num_blocks(self) -> int:
        """Blocks, the placeholder among them."""

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""

    @property
    def labelled(self) -> int:
        """Blocks that are published and not evicted yet."""

    @property
    def evictable(self) -> int:
        """Those of them that nobody holds."""

    def lookup(self, chain: HashChain) -> memoryview:
        """The blocks that hold the leading pages of a chain."""

    def slots(self, blocks: _Blocks) -> memoryview:
        """The slots of blocks: `page_size` consecutive ones each, from block times `page_size`."""

    def parked(self, blocks: _Blocks) -> int:
        """How many of some blocks nobody holds."""

    def hold(self, blocks: _Blocks, chain: HashChain | None = None) -> None:
        """Hold blocks once more; with a chain only if they still hold its pages, one a block."""

    def take(self, count: int) -> memoryview | None:
        """Hold the next blocks of the queue and announce what they lose; None where fewer are free."""

    def publish(self, blocks: _Blocks, chain: HashChain, tokens: _Tokens, *, session_id: str | None = None) -> None:
        """Label held blocks as the pages of a chain, one a block, and announce them as one run."""

    def release(self, blocks: _Blocks) -> None:
        """Give back the blocks of a sequence, passed in its order."""

    def evict(self, count: int) -> int:
        """Take the labels off up to `count` free blocks, those that would lose them next, and announce it."""

    def reset(self) -> bool:
        """Take all labels off and announce it; False, and nothing done, while somebody holds a block."""

    def ids(self) -> memoryview:
        """The id (int64) of each page that some block holds, once."""

    def queue(self) -> memoryview:
        """The free blocks in the order of their reuse."""

    def check_integrity(self) -> None:
        """Raise AssertionError, saying what is broken, unless queue, holders and labels agree."""
