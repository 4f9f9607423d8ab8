"""The first batches of a stream: how they are written, what merging them would save, what their hashes follow from."""

import itertools
from collections.abc import Sequence

import msgspec

from kvevents.coalescing import Coalescer
from kvevents.events import KVCacheEvent
from kvevents.hashing import SchemeReport, identify_scheme
from kvevents.lint.dialect import Recognised, recognise
from kvevents.wire import Dialect, decode_batch

_BATCHES = 4096
_BLOCKS = 32_768
_HASHED_BLOCKS = 1024
_WINDOW_BATCHES = 16
"""Batches that are merged at a time: about what a relay's window takes beside a busy engine."""


class Saving(msgspec.Struct, frozen=True):
    """What merging saves over the batches that were looked at.

    Attributes:
        events: events as they came.
        merged_events: and merged.
        size_bytes: bytes as they came.
        merged_bytes: and merged.
    """

    events: int
    merged_events: int
    size_bytes: int
    merged_bytes: int

    @property
    def share(self) -> float:
        """Of the bytes, 0 to 1."""
        return max(0.0, 1 - self.merged_bytes / self.size_bytes)


class Sample:
    """Keeps the first batches of one stream, up to 32,768 blocks."""

    def __init__(self) -> None:
        self._payloads: list[bytes] = []
        self._blocks = 0

    def add(self, payload: bytes, blocks: int) -> None:
        """Keep a batch that can be read, while there is room."""
        if self._blocks < _BLOCKS and len(self._payloads) < _BATCHES:
            self._payloads.append(payload)
            self._blocks += blocks

    def recognised(self) -> Recognised | None:
        """How the stream is written."""
        return recognise(self._payloads)

    def scheme(self, seeds: Sequence[str], salts: Sequence[str]) -> SchemeReport:
        """Which scheme gave the hashes; `seeds` are tried before the usual ones."""
        if seeds:
            named = identify_scheme(self._events(), seeds=seeds, salts=salts, max_blocks=_HASHED_BLOCKS)
            if named.hash_seed is not None:
                return named
        return identify_scheme(self._events(), salts=salts, max_blocks=_HASHED_BLOCKS)

    def saving(self, dialect: Dialect) -> Saving | None:
        """What merging would save; None where it cannot be measured: several ranks under one sequence."""
        if not self._blocks:
            return None
        coalescer = Coalescer("chain", dialect=dialect)
        merged_bytes = 0
        try:
            for start in range(0, len(self._payloads), _WINDOW_BATCHES):
                for payload in self._payloads[start : start + _WINDOW_BATCHES]:
                    coalescer.add(payload)
                merged_bytes += len(coalescer.take_batch() or b"")
        except ValueError:
            return None
        stats = coalescer.stats()
        return Saving(stats.events, stats.coalesced_events, sum(map(len, self._payloads)), merged_bytes)

    def _events(self) -> "itertools.chain[KVCacheEvent]":
        batches = (decode_batch(payload, strict=False) for payload in self._payloads)
        return itertools.chain.from_iterable(batch.events for batch in batches)
