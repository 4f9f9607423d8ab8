"""What one event, one setting or one snapshot may ask for."""

import struct
import time
from typing import Any

import msgspec
import pytest
import xxhash

from index_feed import AB, PROMPT, A, B, C, Fleet, bare, store
from kvevents.errors import CapacityError, ConfigError, WireError
from kvevents.index import GroupSpec, PrefixIndex

MANY = 1 << 20
"""Blocks in one event at most."""


def encoded(*event: Any) -> bytes:
    return msgspec.msgpack.encode([0.0, [event], None])


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


class TestLargeEvents:
    def test_pending_blocks_beyond_the_bound_are_not_made_first(self) -> None:
        index = PrefixIndex(1, max_pending_blocks=1000)
        blocks = list(range(1, MANY + 1))
        start = time.process_time()
        report = index.apply("w", encoded("BlockStored", blocks, 2**40, [7] * MANY, 1))
        assert (report.stored, report.pending, report.dropped) == (MANY, 1000, MANY - 1000)
        assert time.process_time() - start < 2.0
        assert index.stats().memory_bytes < 2_000_000
        index.check_integrity()

    def test_nor_are_parked_ones(self) -> None:
        index = PrefixIndex(1, max_parked_blocks=1000)
        report = index.apply("w", encoded("BlockStored", list(range(1, MANY + 1)), None, [], 1, None, "CPU"))
        assert (report.parked, report.dropped) == (1000, MANY - 1000)
        assert index.stats().memory_bytes < 2_000_000

    def test_those_with_a_place_are_all_held_though_more_wait_than_may(self) -> None:
        fleet = Fleet(max_parked_blocks=1)
        report = fleet.apply(AB, bare(C, C + 1, C + 2, A, B, medium="CPU"))
        assert (report.parked, report.dropped, fleet.tiers()) == (1, 2, (2, 2, 2))

    def test_more_blocks_than_the_limit_are_one_skipped_event(self) -> None:
        blocks = list(range(1, MANY + 2))
        report = PrefixIndex(1).apply("w", encoded("BlockStored", blocks, None, [7] * len(blocks), 1))
        assert [(event.code, report.stored) for event in report.skipped] == [("over-limit", 0)]

    def test_extra_keys_of_a_block_are_bounded(self, fleet: Fleet) -> None:
        large = ["x" * 20_000]
        report = fleet.apply(store(A, B, tokens=PROMPT[:4], extra_keys=[None, large]), AB)
        assert [event.code for event in report.skipped] == ["extra-keys-too-large"]
        assert "expected at most 16384 bytes for a block, got 20004" in report.skipped[0].reason
        assert (report.stored, fleet.total()) == (2, 2)

    def test_parked_blocks_are_bounded_by_the_bytes_they_take(self) -> None:
        fleet = Fleet(max_parked_bytes=1000)
        report = fleet.apply(*(bare(block, medium="CPU") for block in range(1, 5)))
        assert (report.parked, report.dropped) == (3, 1)


class TestGroups:
    def test_as_many_as_a_snapshot_holds(self) -> None:
        index = PrefixIndex(2)
        groups = {number: GroupSpec("full_attention") for number in range(33)}
        with pytest.raises(ConfigError, match="groups: expected at most 32, got 33"):
            index.add_worker("w", groups=groups)
        del groups[32]
        index.add_worker("w", groups=groups)
        PrefixIndex(2).restore(index.snapshot())

    @pytest.mark.parametrize(
        "groups",
        [
            *({-1: GroupSpec("mamba")}, {2**64: GroupSpec("mamba")}, {"a": GroupSpec("mamba")}, {0: "mamba"}),
            *({0: GroupSpec("sliding_window", -1)}, {0: GroupSpec("sliding_window", 2**64)}, [GroupSpec("mamba")], 5),
        ],
    )
    def test_what_is_none_is_a_config_error(self, groups: Any) -> None:
        with pytest.raises(ConfigError, match="groups"):
            PrefixIndex(2).add_worker("w", groups=groups)


class TestCopies:
    def test_they_are_counted_up_to_a_bound_that_snapshots_hold(self, fleet: Fleet) -> None:
        once = store(A, tokens=[1, 2])
        fleet.index.apply("w", msgspec.msgpack.encode([0.0, [once] * 65_537, None]))
        other = Fleet()
        other.index.restore(fleet.index.snapshot())
        removals = ["BlockRemoved", [A] * 65_536, "GPU"]
        report = other.index.apply("w", msgspec.msgpack.encode([0.0, [removals], None]))
        assert (report.removed, report.removal_misses, other.total()) == (65_536, 0, 0)

    def test_a_forged_count_is_refused(self, fleet: Fleet) -> None:
        fleet.apply(*[AB] * 7)
        with pytest.raises(WireError, match="1 to 65536 copies"):
            PrefixIndex(2).restore(forged(fleet.index.snapshot(), copies=(7, 2**31)))

    def test_a_dump_of_too_many_is_refused(self) -> None:
        index = PrefixIndex(2)
        blocks = list(range(1, 201))
        for _ in range(7):
            index.apply("w", encoded("BlockStored", blocks, None, [1] * 400, 2))
        assert index.dump_events("w")
        other = PrefixIndex(2)
        other.restore(forged(index.snapshot(), copies=(7, 2**16)))
        with pytest.raises(CapacityError, match="expected at most 1048576 copies") as caught:
            other.dump_events("w")
        assert (caught.value.requested, caught.value.available) == (200 * 65_535, 1_048_576)


def forged(snapshot: bytes, *, copies: tuple[int, int]) -> bytes:
    """Another count of copies, under the right checksum."""
    hold = struct.pack("<BBI", 0, 0, copies[0])
    assert snapshot.count(hold) == 1
    body = snapshot[:-8].replace(hold, struct.pack("<BBI", 0, 0, copies[1]))
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
