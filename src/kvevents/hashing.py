"""Block hashes: what engines call a block of a prompt."""

from typing import Literal, TypeAlias

from kvevents._core.hashing import HashChain, block_hashes

__all__ = ["EventFormat", "HashChain", "HashScheme", "block_hashes"]

HashScheme: TypeAlias = Literal["sglang", "vllm-sha256-cbor", "content"]
"""How blocks are hashed: as SGLang or vLLM does, or by what they contain alone, whichever engine made them."""

EventFormat: TypeAlias = Literal["default", "dynamo"]
"""How SGLang announces the ids of a namespace: `default` wraps them only where an adapter has a registered name (so
that two namespaces can announce the same ids), `dynamo` wherever there is an extra key or a salt (the safe choice)."""
