"""vLLM's block hashes in plain Python: what the core is compared with.

Written from the formats, not from the core: `pickle` is Python's own, SHA-256 that of `hashlib`, XXH3 that of the
`xxhash` package; CBOR is written out here.
"""

import hashlib
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import xxhash

from kvevents.hashing import HashScheme

PICKLE, CBOR = "pickle", "cbor"


def cbor(value: Any) -> bytes:
    """Canonical CBOR of None, integers, strings, bytes and sequences."""
    match value:
        case None:
            return b"\xf6"
        case int():
            return head(0, value) if value >= 0 else head(1, -1 - value)
        case bytes():
            return head(2, len(value)) + value
        case str():
            return head(3, len(value.encode())) + value.encode()
        case _:
            return head(4, len(value)) + b"".join(cbor(item) for item in value)


def head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    size = next(size for size in range(4) if number < 1 << (8 << size))
    return bytes([major << 5 | 24 + size]) + number.to_bytes(1 << size, "big")


def pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=5)


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


SCHEMES: dict[HashScheme, tuple[Callable[[bytes], bytes], Callable[[Any], bytes]]] = {
    "vllm-sha256": (sha256, pickled),
    "vllm-sha256-cbor": (sha256, cbor),
    "vllm-xxhash": (xxhash.xxh3_128_digest, pickled),
    "vllm-xxhash-cbor": (xxhash.xxh3_128_digest, cbor),
}


def fresh(text: str) -> str:
    """A string that is no other's object, as decoders give (CPython keeps those of one Latin-1 character)."""
    return text.encode("utf-32").decode("utf-32")


class Prompt(NamedTuple):
    """What a prompt's blocks are hashed over."""

    tokens: Sequence[int]
    block_size: int
    adapter: tuple[str, str] | None = None
    images: Sequence[Sequence[tuple[str, int]]] = ()
    salt: str | None = None
    embeddings: Sequence[bytes] = ()

    def extra(self, block: int, *, tagged: bool) -> tuple[Any, ...] | None:
        """The third member of the tuple that is hashed: built anew, as the engine does for each block."""
        keys: list[Any] = []
        if self.adapter is not None:
            name, path = map(fresh, self.adapter)
            keys.append(("lora", name, path) if tagged else name)
        for id_, offset in self.images[block] if block < len(self.images) else ():
            keys.append(("mm", fresh(id_), offset) if tagged else (fresh(id_), offset))
        if self.salt and block == 0:
            keys.append(("cache_salt", fresh(self.salt)) if tagged else fresh(self.salt))
        if block < len(self.embeddings):
            digest = bytes(bytearray(self.embeddings[block]))
            keys.append(("prompt_embeds", digest) if tagged else digest)
        return tuple(keys) or None


def digests(scheme: HashScheme, prompt: Prompt, *, seed: str, tagged: bool) -> list[bytes]:
    """The digests of a prompt's whole blocks."""
    algorithm, serialise = SCHEMES[scheme]
    parent = algorithm(serialise(fresh(seed)))
    found = []
    for block in range(len(prompt.tokens) // prompt.block_size):
        tokens = tuple(prompt.tokens[block * prompt.block_size : (block + 1) * prompt.block_size])
        parent = algorithm(serialise((parent, tokens, prompt.extra(block, tagged=tagged))))
        found.append(parent)
    return found
