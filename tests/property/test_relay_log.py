"""The law of the compacted log: replayed, it leaves every consumer with what the whole stream leaves it with."""

import time

from hypothesis import given
from hypothesis import strategies as st

from block_streams import Batches, batches
from consumers import consumers
from kvevents._core.relay import CompactedLog
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.transport import RelaySettings, Source
from kvevents.transport.relay.stream import Stream
from kvevents.wire import decode_batch, encode_batch


def payloads(batches: Batches) -> list[bytes]:
    return [encode_batch(KVEventBatch(1.0, events, 0)) for events in batches]


def left(log: CompactedLog, max_bytes: int = 1 << 20) -> list[list[KVCacheEvent]]:
    batches = [decode_batch(batch) for batch in log.batches(max_bytes=max_bytes)]
    assert all(batch.skipped == [] for batch in batches)
    return [batch.events for batch in batches]


@given(batches(), st.sets(st.integers(0, 3)), st.integers(1, 300), batches())
def test_what_is_left_stands_for_all_that_came(
    before: Batches, compactions: set[int], max_bytes: int, held: Batches
) -> None:
    log = CompactedLog()
    whole = consumers()
    for number, payload in enumerate(payloads(before)):
        log.add(payload)
        if number in compactions:
            log.compact()
        for consumer in whole.values():
            consumer.apply(before[number])
    log.compact()
    replayed = left(log, max_bytes)
    assert isinstance(replayed[0][0], AllBlocksCleared)
    for kind, consumer in consumers().items():
        for events in held:  # whatever it held from before
            consumer.apply(events)
        for events in replayed:
            consumer.apply(events)
        assert consumer.held() == whole[kind].held(), kind


@given(batches(), batches())
def test_what_comes_after_finds_consumers_as_they_would_be(before: Batches, after: Batches) -> None:
    log = CompactedLog()
    for payload in payloads(before):
        log.add(payload)
    log.compact()
    whole, late = consumers(), consumers()
    for kind in whole:
        for events in before:
            whole[kind].apply(events)
        for events in left(log):
            late[kind].apply(events)
        for events in after:
            whole[kind].apply(events)
            late[kind].apply(events)
            assert late[kind].held() == whole[kind].held(), kind


@given(batches())
def test_what_is_left_is_bounded_by_what_is_held(stream: Batches) -> None:
    log = CompactedLog()
    sizes = []
    for _ in range(6):
        for payload in payloads(stream):
            log.add(payload)
        log.compact()
        sizes.append(sum(len(blocks_of(event)) for events in left(log) for event in events))
    # Copies may be counted up to a bound; without stores that pile up there is no growth at all.
    assert sizes[-1] <= 16 * max(sizes[0], 1) + sum(len(blocks_of(event)) for events in stream for event in events)


def blocks_of(event: KVCacheEvent) -> list[object]:
    return [] if isinstance(event, AllBlocksCleared) else list(event.block_hashes)


@given(batches())
def test_a_second_compaction_finds_nothing_more(stream: Batches) -> None:
    log, again = CompactedLog(), CompactedLog()
    for payload in payloads(stream):
        log.add(payload)
    log.compact()
    for batch in log.batches():
        again.add(batch)
    again.compact()
    assert sum(len(blocks_of(event)) for events in left(again) for event in events) == sum(
        len(blocks_of(event)) for events in left(log) for event in events
    )


def test_blocks_that_came_and_went_leave_nothing() -> None:
    log = CompactedLog()
    for number in range(2_000):
        chain = [number * 4 + 1, number * 4 + 2]
        log.add(
            encode_batch(KVEventBatch(1.0, [BlockStored([1 << 40, *chain], None, list(range(12)), 4, medium="GPU")]))
        )
        log.add(removal(*reversed(chain)))
        if number % 500 == 0:
            log.compact()
    log.compact()
    assert sum(len(blocks_of(event)) for events in left(log) for event in events) <= 16
    log.add(encode_batch(KVEventBatch(1.0, [AllBlocksCleared()])))
    assert len(log) == log.size_bytes == 0
    assert left(log) == [[AllBlocksCleared()]]


def removal(*blocks: int) -> bytes:
    return encode_batch(KVEventBatch(1.0, [BlockRemoved(list(blocks), "GPU")]))


@given(batches(), st.integers(100, 2_000), st.sampled_from(["off", "chain", "compact"]))
def test_a_replay_from_anywhere_leaves_what_the_whole_stream_leaves(stream: Batches, recent: int, level: str) -> None:
    relay = Stream(Source("w", "tcp://h:1"), RelaySettings(replay_bytes=recent, coalesce=level), lambda: None)  # type: ignore[arg-type]
    sent: list[tuple[int, list[KVCacheEvent]]] = []
    for number, payload in enumerate(payloads(stream)):
        relay.add(payload, number)
        flushed = relay.flush(0.0, force=True)
        relay.sent(flushed, time.time())
        sent += [(one.sequence, decode_batch(one.payload).events) for one in flushed]
    whole = consumers()
    for consumer in whole.values():
        for _, events in sent:
            consumer.apply(events)
    for start in range(len(sent) + 1):
        replayed = [(number, decode_batch(payload).events) for number, payload in relay.since(start)]
        numbers = [number for number, _ in replayed]
        assert numbers == sorted(set(numbers))
        assert numbers[-1:] == ([sent[-1][0]] if start < len(sent) else [])
        for kind, consumer in consumers().items():
            for number, events in sent:
                if number < start:
                    consumer.apply(events)
            for _, events in replayed:
                consumer.apply(events)
            assert consumer.held() == whole[kind].held(), (kind, start)
