"""Recorded vLLM streams through a relay: in the engine's own shape, and with the same blocks at every consumer."""

import itertools
import time
from typing import Any

import msgspec
import pytest

from consumers import consumers
from goldens import capture_names, published_frames
from kvevents.coalescing import Coalescer
from kvevents.events import KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport import Reason, RelaySettings, Source, SourceCounters, SourceState, State
from kvevents.transport.relay.dialects import recognise
from kvevents.transport.relay.stream import Stream
from kvevents.wire import decode_batch

WINDOW = 7
"""Batches of a window."""


def stream_of(level: Any, **settings: Any) -> Stream:
    stream = Stream(Source("w", "tcp://h:1"), RelaySettings(coalesce=level, **settings), lambda: None)
    stream.note_state(SourceState(State.LIVE, "", 0.0, SourceCounters(), Reason.COMPLETE))
    return stream


def shapes(payloads: list[bytes]) -> set[tuple[str, type]]:
    """Which events are maps and which are arrays."""
    events = [event for payload in payloads for event in msgspec.msgpack.decode(payload)[1]]
    return {(event["type"] if isinstance(event, dict) else event[0], type(event)) for event in events}


def held(batches: list[KVEventBatch]) -> dict[str, Any]:
    by_kind = consumers()
    for kind in by_kind.values():
        for batch in batches:
            kind.apply(batch.events)
    return {name: kind.held() for name, kind in by_kind.items()}


@pytest.mark.parametrize("level", ["chain", "compact"])
@pytest.mark.parametrize("name", capture_names())
def test_every_consumer_holds_what_it_would_hold_of_the_engine(name: str, level: str) -> None:
    frames = published_frames(name)
    if not frames:
        pytest.skip("the engine published nothing")
    stream = stream_of(level, replay_bytes=4_000)
    ranks = sorted({decode_batch(payload).attn_dp_rank or 0 for *_, payload in frames})
    sent = []
    came: dict[int, list[KVEventBatch]] = {rank: [] for rank in ranks}
    went: dict[int, list[KVEventBatch]] = {rank: [] for rank in ranks}
    sequence = itertools.count()
    for start in range(0, len(frames), WINDOW):
        for *_, payload in frames[start : start + WINDOW]:
            batch = decode_batch(payload)
            came[batch.attn_dp_rank or 0].append(batch)
            assert stream.add(payload, next(sequence)).skipped == []
        flushed = stream.flush(1e12)
        stream.sent(flushed, time.time())
        sent += flushed
        for one in flushed:
            batch = decode_batch(one.payload)
            assert batch.attn_dp_rank == one.rank
            went[batch.attn_dp_rank or 0].append(batch)
        assert {rank: held(went[rank]) for rank in ranks} == {rank: held(came[rank]) for rank in ranks}
    assert [one.sequence for one in sent] == list(range(len(sent)))
    clear = "AllBlocksCleared"  # which the relay says first
    assert {shape for shape in shapes([one.payload for one in sent]) if shape[0] != clear} == {
        shape for shape in shapes([payload for *_, payload in frames]) if shape[0] != clear
    } or level == "compact"
    # A late consumer of the reference protocol.
    late: dict[int, list[KVEventBatch]] = {rank: [] for rank in ranks}
    for _, payload in stream.since(0):
        batch = decode_batch(payload)
        late[batch.attn_dp_rank or 0].append(batch)
    assert {rank: held(late[rank]) for rank in ranks} == {rank: held(came[rank]) for rank in ranks}


@pytest.mark.parametrize("name", capture_names())
def test_a_recorded_stream_is_recognised_as_vllms(name: str) -> None:
    guesses = [recognise(payload) for *_, payload in published_frames(name)]
    found = {guess.dialect for guess in guesses if guess.is_sure}
    assert found <= {"vllm", "vllm-array", "sglang-array"}
    if "v0.10.1" not in name:  # signed hashes, and no field that SGLang's arrays have not
        assert "sglang-array" not in found, name


def test_the_index_holds_the_same_of_both() -> None:
    name = next(name for name in capture_names() if name.startswith("sha256") and published_frames(name))
    stream, direct, relayed = stream_of("chain"), PrefixIndex(16), PrefixIndex(16)
    for number, (*_, payload) in enumerate(published_frames(name)):
        direct.apply("w", payload, seq=number)
        stream.add(payload, number)
    for number, sent in enumerate(stream.flush(1e12)):
        relayed.apply("w", sent.payload, seq=number)
    assert relayed.holdings("w") == direct.holdings("w")


def test_a_recorded_stream_is_smaller_behind_a_relay() -> None:
    name = next(name for name in capture_names() if "mooncake" in name or name.startswith("sha256_cbor"))
    coalescer = Coalescer("chain", dialect="vllm")
    raw = 0
    for *_, payload in published_frames(name):
        raw += len(payload)
        coalescer.add(payload)
    taken = coalescer.take_batch()
    assert taken is not None
    assert len(taken) < raw
