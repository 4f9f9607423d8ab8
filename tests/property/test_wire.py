"""Laws of the wire."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from kvevents.errors import WireError
from kvevents.events import BlockStored, BlockStoredWithMetadata, KVCacheEvent, KVEventBatch
from kvevents.wire import Dialect, decode_batch, encode_batch
from strategies import DIALECTS, batches

DIALECTS_AND_BATCHES = st.sampled_from(DIALECTS).flatmap(lambda name: st.tuples(st.just(name), batches(name)))
PAYLOADS = DIALECTS_AND_BATCHES.map(lambda made: encode_batch(made[1], dialect=made[0]))


def in_dialect(event: KVCacheEvent, dialect: Dialect) -> KVCacheEvent:
    """What the dialect says of an event: maps have a field for the salt that the earlier form keeps in a map."""
    if not isinstance(event, BlockStoredWithMetadata):
        return event
    metadata = event.metadata
    if metadata is not None:
        only_salt = metadata.cache_salt is not None and not metadata.unknown_fields
        if dialect == "sglang-array" or not only_salt or event.cache_salt != metadata.cache_salt:
            return event
    return BlockStored(**{name: getattr(event, name) for name in BlockStored.__struct_fields__})


@given(DIALECTS_AND_BATCHES)
def test_what_is_written_reads_back(made: tuple[Dialect, KVEventBatch]) -> None:
    dialect, batch = made
    expected = msgspec.structs.replace(batch, events=[in_dialect(event, dialect) for event in batch.events])
    payload = encode_batch(batch, dialect=dialect)
    assert decode_batch(payload) == expected
    assert encode_batch(expected, dialect=dialect) == payload


@given(DIALECTS_AND_BATCHES)
def test_what_is_written_is_what_msgspec_reads(made: tuple[Dialect, KVEventBatch]) -> None:
    dialect, batch = made
    payload = encode_batch(batch, dialect=dialect)
    ts, events, rank = msgspec.msgpack.decode(payload)
    assert (ts, rank, len(events)) == (batch.ts, batch.attn_dp_rank, len(batch.events))
    # The smallest form of everything, as msgspec writes it.
    assert msgspec.msgpack.encode([ts, events, rank]) == payload


@given(PAYLOADS, st.data())
def test_a_cut_payload_is_refused_whole(payload: bytes, data: st.DataObject) -> None:
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    for strict in (True, False):
        with pytest.raises(WireError) as refused:
            decode_batch(cut, strict=strict)
        assert 0 <= refused.value.offset <= len(cut)


@given(PAYLOADS, st.binary(min_size=1))
def test_bytes_after_the_batch_refuse_it(payload: bytes, more: bytes) -> None:
    with pytest.raises(WireError, match="end of the payload") as refused:
        decode_batch(payload + more, strict=False)
    assert refused.value.offset == len(payload)


@given(PAYLOADS, st.data())
def test_a_changed_byte_is_judged_as_msgspec_judges_it(payload: bytes, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(payload) - 1))
    judge_as_msgspec(payload[:index] + data.draw(st.binary(min_size=1, max_size=1)) + payload[index + 1 :])


@given(st.binary(max_size=64))
def test_noise_is_judged_as_msgspec_judges_it(payload: bytes) -> None:
    judge_as_msgspec(payload)


def judge_as_msgspec(payload: bytes) -> None:
    """Broken msgpack and broken frames are refused; everything else is a batch."""
    note(payload.hex())
    try:
        frame = msgspec.msgpack.decode(payload)
    except (TypeError, msgspec.ValidationError):
        # Sound msgpack that Python cannot hold, such as a map as a key.
        with suppress(WireError):
            decode_batch(payload, strict=False)
        return
    except (msgspec.DecodeError, UnicodeDecodeError):
        frame = None
    if is_frame(frame):
        decode_batch(payload, strict=False)
    else:
        with pytest.raises(WireError):
            decode_batch(payload, strict=False)


def is_frame(frame: Any) -> bool:
    if isinstance(frame, dict):
        ranks = [frame[name] for name in ("attn_dp_rank", "data_parallel_rank", "dp_rank") if name in frame]
        frame = [frame.get("ts"), frame.get("events"), *ranks]
    if not isinstance(frame, list) or len(frame) < 2:
        return False
    ts, events, rank = [*frame, None][:3]
    rank_fits = rank is None or (type(rank) is int and rank < 2**63)
    return type(ts) in {int, float} and isinstance(events, list) and rank_fits
