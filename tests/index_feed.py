"""Events and an index for tests of the index: blocks of 2 tokens unless said otherwise."""

from typing import Any

from kvevents.events import BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.index import ApplyReport, PrefixIndex, WorkerMatch

A, B, C, D = 101, 102, 103, 104
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]
"""Its blocks of 2 are A, B, C and D."""


def store(*blocks: int | bytes, parent: int | bytes | None = None, tokens: list[Any], **fields: Any) -> BlockStored:
    block_size = fields.pop("block_size", 2)
    return BlockStored(list(blocks), parent, tokens, block_size, **({"medium": "GPU"} | fields))


def bare(*blocks: int | bytes, medium: str | None, **fields: Any) -> BlockStored:
    """A store without tokens, as offload connectors send it."""
    return BlockStored(list(blocks), None, [], 0, medium=medium, **fields)


def remove(*blocks: int | bytes, medium: str | None = "GPU", **fields: Any) -> BlockRemoved:
    return BlockRemoved(list(blocks), medium, **fields)


def batch(*events: KVCacheEvent, rank: int | None = None) -> KVEventBatch:
    return KVEventBatch(ts=0.0, events=list(events), attn_dp_rank=rank)


AB = store(A, B, tokens=PROMPT[:4])


class Fleet:
    """An index under test: every step is followed by a check of all its invariants."""

    def __init__(self, block_size: int = 2, **settings: Any) -> None:
        self.index = PrefixIndex(block_size, **settings)

    def apply(self, *events: KVCacheEvent, worker: Any = "w", rank: int | None = None, **how: Any) -> ApplyReport:
        report = self.index.apply(worker, batch(*events, rank=rank), **how)
        self.index.check_integrity()
        return report

    def match(self, tokens: list[int] = PROMPT, **namespace: Any) -> WorkerMatch | None:
        matches = self.index.match(tokens, **namespace)
        assert len(matches) <= 1
        return matches[0] if matches else None

    def total(self, tokens: list[int] = PROMPT, **namespace: Any) -> int:
        match = self.match(tokens, **namespace)
        if match is None:
            return 0
        assert sum(match.fastest.values()) == match.total
        return match.total

    def tiers(self) -> tuple[int, int, int]:
        match = self.match()
        assert match is not None
        return match.total, match.tiers["GPU"], match.tiers["CPU_PINNED"]
