"""`kvevents._core.hashing`: see `kvevents.hashing`."""

from collections.abc import Sequence
from typing import Literal, TypeAlias, final

from _typeshed import ReadableBuffer

from kvevents._core.tokens import TokenPages
from kvevents.events import BlockHash

__all__ = ["HashChain", "announced_ids", "block_digests", "block_hashes", "page_digests", "solve_none_hash"]

_Tokens: TypeAlias = Sequence[int] | ReadableBuffer | TokenPages
# Public as kvevents.hashing.HashScheme, EventFormat, KeyForm and BlockKeys; stubs import no higher layer.
_HashScheme: TypeAlias = Literal[
    "sglang", "vllm-sha256", "vllm-sha256-cbor", "vllm-xxhash", "vllm-xxhash-cbor", "vllm-builtin", "content"
]
_EventFormat: TypeAlias = Literal["default", "dynamo"]
_KeyForm: TypeAlias = Literal["tagged", "bare"]
_BlockKeys: TypeAlias = Sequence[Sequence[str | int] | str | bytes]

@final
class HashChain:
    """The hashes of consecutive pages of one prompt under a namespace.

    Immutable; continuing and splitting share what is hashed already, so that a chain is cheap to keep in every node of
    a tree. `len()` is in pages. Token ids are a list, an `array`, a numpy integer array or any buffer of integers;
    contiguous buffers of int32, uint32, int64 and uint64 are read in place and must not be changed by another thread
    during the call. What a chain is hashed under is what a recorder announces with it, so there are no images in a
    chain: `block_hashes` takes them.
    """

    @staticmethod
    def root(
        page_size: int,
        *,
        scheme: _HashScheme = "sglang",
        extra_key: str | None = None,
        cache_salt: str | None = None,
        bigram: bool = False,
        hash_seed: str | None = None,
        adapter_path: str | None = None,
        key_form: _KeyForm = "tagged",
        none_hash: int | None = None,
    ) -> HashChain:
        """The empty chain before the first page.

        Args:
            page_size: tokens in a page, or pairs where `bigram` is set.
            scheme: how pages are hashed.
            extra_key: separates prompts, by adapter for instance. In the scheme `sglang` it does not enter the
                hashes; in all others it is the adapter's name and does.
            cache_salt: a tenant's secret that enters the first hash and so all; an empty one is none.
            bigram: pages are made of pairs of neighbouring tokens (EAGLE); not in vLLM's schemes.
            hash_seed: vLLM: the process's PYTHONHASHSEED; by default what vLLM takes where it is not set
                (`vllm-none-hash`: SHA-256 schemes, since 0.29). The other schemes need one.
            adapter_path: vLLM: where the adapter was loaded from, which enters the hashes (form `tagged`); by default
                empty.
            key_form: vLLM: how adapter, images, salt and embeddings enter the hashes: `tagged` since 0.31, `bare`
                before.
            none_hash: `vllm-builtin`: `hash(None)` in the process, by default as in Python 3.12 and later; before that
                it is an address and no two processes agree.

        Raises:
            ConfigError: the page size is 0, the scheme is not known, has no such setting or needs a seed.
        """

    def extend(self, tokens: _Tokens) -> HashChain:
        """Hash `tokens` as the continuation of this chain and return the new pages only.

        Args:
            tokens: whole pages of ids from 0 to 2^64-1. Bigrams: the token that the last pair ended with comes first
                again, so that n pairs are n + 1 tokens.

        Raises:
            ValueError: a page is not whole or an id is negative.
        """

    def split(self, pages: int) -> tuple[HashChain, HashChain]:
        """The first `pages` pages and the rest; nothing is hashed or copied.

        Raises:
            ValueError: there are fewer pages.
        """

    @property
    def ids(self) -> memoryview:
        """The ids of the pages, int64, not wrapped (an `EventRecorder` wraps them as its event format asks).

        On vLLM's wire the same 64 bits are an unsigned integer (but with `vllm-builtin`).
        """

    @property
    def digests(self) -> list[bytes]:
        """The full digests of the pages: 32 bytes, with XXH3 16, with Python's `hash()` and content hashes 8."""

    @property
    def parent_id(self) -> int | None:
        """The id of the page above the first one, not wrapped; None at the start of a prompt."""

    @property
    def page_size(self) -> int:
        """Tokens (pairs, for bigrams) in a page."""

    @property
    def extra_key(self) -> str | None:
        """What separates the prompt's tree from others."""

    @property
    def cache_salt(self) -> str | None:
        """The salt, None where there is none."""

    @property
    def bigram(self) -> bool:
        """Whether pages are made of pairs."""

    def __len__(self) -> int: ...

def block_hashes(
    tokens: _Tokens,
    block_size: int,
    *,
    scheme: _HashScheme = "sglang",
    extra_key: str | None = None,
    cache_salt: str | None = None,
    bigram: bool = False,
    event_format: _EventFormat = "default",
    named: bool = False,
    hash_seed: str | None = None,
    adapter_path: str | None = None,
    lora_id: int | None = None,
    extra_keys: Sequence[_BlockKeys | None] | None = None,
    key_form: _KeyForm = "tagged",
    none_hash: int | None = None,
    parent_digest: bytes | None = None,
) -> memoryview:
    """The ids that an engine announces for the whole blocks of a prompt.

    Args:
        tokens: the prompt's token ids; what is left after the last whole block has no hash.
        block_size: tokens in a block, or pairs where `bigram` is set.
        scheme: how blocks are hashed.
        extra_key: separates prompts, as in `HashChain.root`.
        cache_salt: a tenant's secret, as in `HashChain.root`.
        bigram: blocks are made of pairs of neighbouring tokens (EAGLE).
        event_format: how the engine announces ids of a namespace (scheme `sglang`).
        named: the adapter of `extra_key` has a registered name, which wraps ids in the format `default` too.
        hash_seed: as in `HashChain.root`.
        adapter_path: as in `HashChain.root`.
        lora_id: vLLM before 0.11: the adapter's number, which enters the hashes in place of its name.
        extra_keys: vLLM: for each block None or its images as `[image id, offset from the block's start]` (in early
            versions the id alone, form `bare`) and its digest of prompt embeddings, as bytes. Blocks after the last
            entry have none. Adapter and salt are not among them.
        key_form: as in `HashChain.root`.
        none_hash: as in `HashChain.root`.
        parent_digest: full digest of the block above the first one, where the tokens continue a prompt.

    Returns:
        One integer a block: uint64 as on vLLM's wire (the last 8 bytes of the digest), in the schemes `sglang`,
        `vllm-builtin` and `content` int64.

    Raises:
        ConfigError: the block size is 0, the scheme or format is not known, or the scheme has no such setting or needs
            a seed.
        ValueError: an id is negative, extra keys are no such keys or more than there are blocks, or the parent's digest
            has another size.
        TypeError: tokens or extra keys are no such values at all.
    """

def block_digests(
    tokens: _Tokens,
    block_size: int,
    *,
    scheme: _HashScheme = "sglang",
    extra_key: str | None = None,
    cache_salt: str | None = None,
    bigram: bool = False,
    hash_seed: str | None = None,
    adapter_path: str | None = None,
    lora_id: int | None = None,
    extra_keys: Sequence[_BlockKeys | None] | None = None,
    key_form: _KeyForm = "tagged",
    none_hash: int | None = None,
    parent_digest: bytes | None = None,
) -> list[bytes]:
    """The full digests of the whole blocks of a prompt: what vLLM announces where it is told to send bytes.

    Takes and raises the same as `block_hashes`. Digests have 32 bytes, with XXH3 16, with Python's `hash()` and content
    hashes 8.
    """

def page_digests(
    tokens: _Tokens,
    page_size: int,
    *,
    above: str | None = None,
    cache_salt: str | None = None,
    bigram: bool = False,
) -> list[str]:
    """The full digests (scheme `sglang`, hexadecimal) of the pages of `tokens`; a last page may be partial.

    Args:
        tokens: ids that continue the page with digest `above`; bigrams begin with the token that it ended with.
        page_size: tokens in a page, or pairs where `bigram` is set.
        above: digest of the page above the first one; None at the start of a prompt.
        cache_salt: seeds the chain at the start of a prompt; an empty one is none.
        bigram: pages are made of pairs of neighbouring tokens (EAGLE).

    Raises:
        ConfigError: the page size is 0.
        ValueError: an id is negative, or `above` is not a digest.
    """

def announced_ids(
    digests: Sequence[str],
    *,
    extra_key: str | None = None,
    cache_salt: str | None = None,
    event_format: _EventFormat = "default",
    named: bool = False,
) -> list[BlockHash]:
    """The ids (integers) under which pages with these digests are announced, as in `block_hashes`.

    Raises:
        ConfigError: the format is not known.
        ValueError: a digest is not 64 hexadecimal digits.
    """

def solve_none_hash(tokens: _Tokens, parent: int, block: int) -> int:
    """The `hash(None)` of a process in which one block has the hash `block` (scheme `vllm-builtin`).

    Args:
        tokens: the block's, which has no adapter, image or salt.
        parent: hash of the block above.
        block: the block's hash.
    """
