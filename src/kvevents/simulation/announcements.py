"""What a fleet announced: followed live, and weighed against one event a page."""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from kvevents.events import BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.wire import decode_batch, encode_batch


class EventFigures(msgspec.Struct):
    """Events as they travelled, and what they would have been without coalescing.

    Attributes:
        batches: messages.
        pages_stored: blocks announced as stored.
        pages_removed: blocks announced as removed.
        stored_events: store events that carried them.
        pages_per_event: pages in a store event, on average; 0 when there is none.
        events_before: one event a page, and the clears.
        events_after: events that travelled.
        bytes_before: the same batches with one event a page, encoded.
        bytes_after: payload bytes that travelled.
    """

    batches: int = 0
    pages_stored: int = 0
    pages_removed: int = 0
    stored_events: int = 0
    pages_per_event: float = 0.0
    events_before: int = 0
    events_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


class Listener:
    """A subscriber's sink that keeps an index of its own, and every payload for the reckoning.

    The index answers what the whole fleet holds at a moment, whatever the router makes of it.
    """

    def __init__(self, page_size: int) -> None:
        self.index = PrefixIndex(page_size)
        self.payloads: list[bytes] = []
        self._page_size = page_size
        self._last_seq: dict[tuple[str, int], int] = {}

    def apply(self, worker: str, data: bytes, *, seq: int | None, dp_rank: int | None) -> object:
        """Keep a batch and apply it."""
        self.payloads.append(bytes(data))
        if seq is not None:
            self._last_seq[worker, dp_rank or 0] = seq
        return self.index.apply(worker, data, seq=seq, dp_rank=dp_rank)

    def clear_worker(self, worker: str, dp_rank: int | None = None) -> None:
        """Forget what a worker held."""
        self.index.clear_worker(worker, dp_rank)

    def missing(self, last: Mapping[tuple[str, int], int | None]) -> str | None:
        """What has not come of the batches up to those last ones, by worker and rank; None when all has."""
        for (worker, rank), seq in last.items():
            heard = self._last_seq.get((worker, rank))
            if seq is not None and (heard is None or heard < seq):
                return f"events of {worker} rank {rank}: expected batch {seq}, the last that came is {heard}"
        return None

    def held(self, tokens: "array[int]") -> int:
        """Prompt tokens that the best worker would find cached now; the last token is always computed."""
        return max((match.usable for match in self.index.match(tokens[:-1])), default=0) * self._page_size


def event_figures(payloads: Iterable[bytes]) -> EventFigures:
    """Weigh payloads of events against one event a page."""
    figures = EventFigures()
    for payload in payloads:
        batch = decode_batch(payload)
        pages = [page for event in batch.events for page in one_event_a_page(event)]
        stores = [event for event in batch.events if isinstance(event, BlockStored)]
        removals = [event for event in batch.events if isinstance(event, BlockRemoved)]
        figures.batches += 1
        figures.pages_stored += sum(len(event.block_hashes) for event in stores)
        figures.pages_removed += sum(len(event.block_hashes) for event in removals)
        figures.stored_events += len(stores)
        figures.events_before += len(pages)
        figures.events_after += len(batch.events)
        figures.bytes_before += len(encode_batch(KVEventBatch(batch.ts, pages, batch.attn_dp_rank)))
        figures.bytes_after += len(payload)
    if figures.stored_events:
        figures.pages_per_event = figures.pages_stored / figures.stored_events
    return figures


def one_event_a_page(event: KVCacheEvent) -> Iterator[KVCacheEvent]:
    """An event taken apart into events of one block each; what has no blocks, or other tokens than theirs, as it is."""
    if isinstance(event, BlockRemoved):
        for block in event.block_hashes:
            yield msgspec.structs.replace(event, block_hashes=[block])
    elif isinstance(event, BlockStored) and len(event.token_ids) == len(event.block_hashes) * event.block_size:
        yield from _pages(event)
    else:
        yield event


def _pages(event: BlockStored) -> Iterator[BlockStored]:
    parent = event.parent_block_hash
    tokens: Any = event.token_ids
    for number, block in enumerate(event.block_hashes):
        start = number * event.block_size
        yield msgspec.structs.replace(
            event,
            block_hashes=[block],
            parent_block_hash=parent,
            token_ids=tokens[start : start + event.block_size],
            extra_keys=None if event.extra_keys is None else event.extra_keys[number : number + 1],
        )
        parent = block
