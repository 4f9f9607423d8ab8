"""Plain consumers of event streams, as oracles."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from kvevents.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent


class Residency:
    """What a consumer that counts GPU blocks, and keeps a set for every other tier, holds after a stream.

    Args:
        shares_ids: namespaces may share ids, so that a tier may be told twice that a block is gone.
    """

    def __init__(self, *, shares_ids: bool = False) -> None:
        self._shares_ids = shares_ids
        self._count: Counter[tuple[BlockHash, str | None]] = Counter()

    def apply(self, events: Iterable[KVCacheEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    for block in event.block_hashes:
                        self._store((block, event.medium))
                case BlockRemoved():
                    for block in event.block_hashes:
                        self._remove((block, event.medium))
                case AllBlocksCleared():
                    self._count.clear()

    def held(self) -> set[tuple[BlockHash, str | None]]:
        return set(self._count)

    def _store(self, key: tuple[BlockHash, str | None]) -> None:
        self._count[key] = self._count[key] + 1 if key[1] == "GPU" else 1

    def _remove(self, key: tuple[BlockHash, str | None]) -> None:
        if self._shares_ids and key[1] != "GPU" and key not in self._count:
            return
        assert key in self._count, f"{key} is removed but not held"
        self._count[key] -= 1
        if not self._count[key]:
            del self._count[key]


class OneBlock(NamedTuple):
    """An event about one block: what any coalescing of a stream expands to."""

    kind: str
    block: BlockHash | None = None
    parent: BlockHash | None = None
    tokens: tuple[Any, ...] = ()
    rest: tuple[tuple[str, Any], ...] = ()


PER_BLOCK = {"type", "block_hashes", "parent_block_hash", "token_ids"}


def expanded(events: Iterable[KVCacheEvent | dict[str, Any]]) -> list[OneBlock]:
    """A stream, one event a block; events may be the dictionaries of a recorded script."""
    return [one for event in events for one in _expand(event if isinstance(event, dict) else _fields(event))]


def _fields(event: KVCacheEvent) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return fields


def _expand(event: dict[str, Any]) -> Iterator[OneBlock]:
    rest = tuple(sorted((name, value) for name, value in event.items() if name not in PER_BLOCK and value is not None))
    blocks = event.get("block_hashes")
    if blocks is None:
        yield OneBlock(event["type"], rest=rest)
        return
    parent = event.get("parent_block_hash")
    units = [tuple(unit) if isinstance(unit, list) else unit for unit in event.get("token_ids", ())]
    each = len(units) // len(blocks)
    for index, block in enumerate(blocks):
        yield OneBlock(event["type"], block, parent, tuple(units[index * each : (index + 1) * each]), rest)
        parent = block if "parent_block_hash" in event else None
