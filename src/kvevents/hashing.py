"""Block hashes: what engines call a block of a prompt."""

from typing import Literal, TypeAlias

from kvevents._core.hashing import HashChain

__all__ = ["HashChain", "HashScheme"]

HashScheme: TypeAlias = Literal["sglang"]
"""How pages are hashed."""
