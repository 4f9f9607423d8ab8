"""A relay writes as its source does, and finds out by itself how that is."""

import pytest

from kvevents.events import BlockRemoved, BlockStored, KVEventBatch
from kvevents.transport.relay.dialects import recognise
from kvevents.transport.relay.lane import Lane
from kvevents.transport.relay.stats import StreamStats
from kvevents.wire import Dialect, encode_batch

SGLANG = BlockStored([-7], None, [1, 2], 2, medium="GPU")
VLLM = BlockStored([2**64 - 7], None, [1, 2], 2, medium="GPU")
EITHER = BlockStored([7], None, [1, 2], 2, medium="GPU")


def encoded(event: BlockStored | BlockRemoved, dialect: Dialect) -> bytes:
    return encode_batch(KVEventBatch(1.0, [event], 0), dialect=dialect)


@pytest.mark.parametrize("dialect", ["sglang", "sglang-array", "vllm", "vllm-array"])
def test_a_store_tells(dialect: Dialect) -> None:
    assert recognise(encoded(SGLANG if dialect.startswith("sglang") else VLLM, dialect)) == (dialect, True)


def test_a_batch_that_is_nested_too_deep_tells_nothing_and_goes_through() -> None:
    deep = b"\x93\xcb" + bytes(8) + b"\x91\x92\xa4Nova" + b"\x91" * 2_000 + b"\xc0" + b"\x00"
    lane = Lane(0, "chain", "auto", StreamStats())
    assert [event.code for event in lane.add(deep)] == ["unknown-tag"]


def test_where_hashes_do_not_tell_fields_do() -> None:
    assert recognise(encoded(EITHER, "vllm")) == ("vllm", True)
    assert recognise(encoded(EITHER, "vllm-array")) == ("vllm-array", True)
    assert recognise(encoded(EITHER, "sglang")) == ("sglang", True)
    assert recognise(encoded(EITHER, "sglang-array")) == ("sglang-array", False)
    salted = BlockStored([7], None, [1, 2], 2, medium="GPU", cache_salt="s")
    assert recognise(encoded(salted, "sglang-array")) == ("sglang-array", True)
    assert recognise(encoded(salted, "sglang")) == ("sglang", True)
    assert recognise(encoded(BlockRemoved([7], "GPU"), "vllm")) == ("sglang", False)


def test_a_lane_writes_what_came_before_as_it_was_taken_then() -> None:
    lane = Lane(0, "chain", "auto", StreamStats())
    removed = BlockRemoved([1], "GPU")
    lane.add(encoded(removed, "vllm-array"))
    lane.add(encoded(VLLM, "vllm-array"))
    assert lane.dialect == "vllm-array"
    assert lane.take() == [encoded(removed, "sglang-array"), encoded(VLLM, "vllm-array")]
    assert lane.pending_bytes == 0


def test_a_dialect_that_is_given_stays() -> None:
    lane = Lane(0, "chain", "vllm", StreamStats())
    lane.add(encoded(SGLANG, "sglang-array"))
    assert lane.take() == [encoded(SGLANG, "vllm")]


def test_what_arrays_have_no_place_for_is_written_as_a_map() -> None:
    lane = Lane(0, "chain", "sglang-array", StreamStats())
    grouped = BlockRemoved([1], "GPU", 3)
    for event in (SGLANG, grouped, BlockRemoved([-7], "GPU")):
        lane.add(encoded(event, "vllm"))
    assert lane.take() == [
        encoded(SGLANG, "sglang-array"),
        encoded(grouped, "vllm"),
        encoded(BlockRemoved([-7], "GPU"), "sglang-array"),
    ]
