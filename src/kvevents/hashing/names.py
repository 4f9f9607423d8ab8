"""Names of hash schemes and of what belongs to them."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

HashScheme: TypeAlias = Literal[
    "sglang", "vllm-sha256", "vllm-sha256-cbor", "vllm-xxhash", "vllm-xxhash-cbor", "vllm-builtin", "content"
]
"""How blocks are hashed: as SGLang or vLLM does, or by what they contain alone, whichever engine made them."""

EventFormat: TypeAlias = Literal["default", "dynamo"]
"""How SGLang announces the ids of a namespace: `default` wraps them only where an adapter has a registered name (so
that two namespaces can announce the same ids), `dynamo` wherever there is an extra key or a salt."""

KeyForm: TypeAlias = Literal["tagged", "bare"]
"""How adapter, images, salt and embeddings enter vLLM's hashes: `tagged` with what they are since 0.31, `bare` before
(when an adapter's name and a salt of the same letters were the same)."""

HashForm: TypeAlias = Literal["signed", "unsigned", "bytes"]
"""How events carry hashes: integers of 64 bits with a sign or without, or whole digests."""

BlockKeys: TypeAlias = Sequence[Sequence[str | int] | str | bytes]
"""A block's images and embeddings on vLLM's wire: `[image id, offset]` (early: the id alone) and a digest as bytes."""
