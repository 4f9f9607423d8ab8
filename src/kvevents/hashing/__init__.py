"""Block hashes: what engines call a block of a prompt, and which engine with which settings called it that."""

from kvevents._core.hashing import HashChain, block_digests, block_hashes
from kvevents.hashing.identify import DEFAULT_SEEDS, identify_scheme
from kvevents.hashing.names import BlockKeys, EventFormat, HashForm, HashScheme, KeyForm
from kvevents.hashing.report import NamespaceReport, SchemeReport

__all__ = [
    "DEFAULT_SEEDS",
    "BlockKeys",
    "EventFormat",
    "HashChain",
    "HashForm",
    "HashScheme",
    "KeyForm",
    "NamespaceReport",
    "SchemeReport",
    "block_digests",
    "block_hashes",
    "identify_scheme",
]
