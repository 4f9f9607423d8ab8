"""The index as bytes and as events."""

from typing import Any

import pytest

from index_feed import AB, PROMPT, A, B, C, D, Fleet, bare, batch, remove, store
from kvevents.errors import CapacityError, WireError
from kvevents.events import BlockRemoved, BlockStored
from kvevents.index import PrefixIndex
from kvevents.wire import encode_batch


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


class TestSnapshots:
    def test_they_hold_everything_and_the_last_sequences(self, fleet: Fleet) -> None:
        fleet.index.add_worker("set", block_size=2, residency="set")
        fleet.apply(AB, AB, bare(D, medium="CPU"), store(D, parent=C, tokens=[7, 8]), rank=0, seq=41)
        fleet.apply(AB, AB, worker="set", seq=7)
        other = Fleet()
        other.index.restore(fleet.index.snapshot())
        other.index.check_integrity()
        assert other.index.match(PROMPT) == fleet.index.match(PROMPT)
        assert [source.last_seq for source in other.index.stats().sources] == [7, 41]
        assert other.apply(remove(A), rank=0, seq=41).ignored == "duplicate"
        other.apply(store(C, parent=B, tokens=[5, 6]), remove(A), rank=0, seq=42)
        other.apply(remove(A), worker="set", seq=8)
        assert [(match.worker, match.total) for match in other.index.match(PROMPT)] == [("w", 4)]

    def test_they_hold_neither_tokens_nor_salts_nor_adapters(self) -> None:
        fleet = Fleet(keep_tokens=True)
        tokens = [0xABCDEF01, 0xABCDEF02]
        fleet.apply(store(A, tokens=tokens, cache_salt="secret-salt", lora_name="secret-adapter"))
        snapshot = fleet.index.snapshot()
        assert b"secret" not in snapshot
        assert tokens[0].to_bytes(4, "little") not in snapshot
        other = Fleet()
        other.index.restore(snapshot)
        assert other.total(tokens, cache_salt="secret-salt", lora_name="secret-adapter") == 1

    def test_handles_live_on_and_removed_ids_stay_removed(self, fleet: Fleet) -> None:
        fleet.apply(AB, worker="gone")
        fleet.apply(AB, worker="kept")
        fleet.index.remove_worker("gone-before")
        snapshot = fleet.index.snapshot()
        kept, new = fleet.index.add_worker("kept"), fleet.index.add_worker("new")
        fleet.apply(remove(A), worker=kept)
        fleet.apply(AB, worker=new)
        fleet.index.remove_worker("gone")
        fleet.index.restore(snapshot)
        assert [match.worker for match in fleet.index.match(PROMPT)] == ["kept"]
        assert fleet.index.stats().workers == ["kept", "new"]
        assert fleet.apply(AB, worker="gone").ignored == "worker-removed"
        assert fleet.apply(AB, worker=new).ignored is None
        assert fleet.apply(remove(A, B), worker=kept).removed == 2

    def test_ids_removed_before_the_snapshot_stay_removed_after_it(self, fleet: Fleet) -> None:
        fleet.apply(AB)
        fleet.index.remove_worker("w")
        other = Fleet()
        other.index.restore(fleet.index.snapshot())
        assert other.apply(AB).ignored == "worker-removed"

    def test_bytes_that_are_no_snapshot_change_nothing(self, fleet: Fleet) -> None:
        fleet.apply(AB, bare(C, medium="CPU"), store(D, parent=9, tokens=[7, 8]))
        good = fleet.index.snapshot()
        other = Fleet()
        other.apply(store(A, tokens=[1, 2]))
        before = other.index.snapshot()
        damaged = [good[:length] for length in range(0, len(good), 7)]
        damaged += [good + b"x", b"x" + good, encode_batch(batch(AB))]
        damaged += [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(0, len(good), 5)]
        for data in damaged:
            with pytest.raises(WireError):
                other.index.restore(data)
        assert other.index.snapshot() == before

    def test_a_snapshot_of_another_version_says_so(self, fleet: Fleet) -> None:
        good = fleet.index.snapshot()
        with pytest.raises(WireError, match=r"expected snapshot version 3, found 9.*at byte 8"):
            fleet.index.restore(good[:8] + b"\x09" + good[9:])

    def test_more_sources_than_there_is_room_for(self, fleet: Fleet) -> None:
        for rank in range(3):
            fleet.apply(AB, rank=rank)
        small = PrefixIndex(2, max_sources=2)
        with pytest.raises(CapacityError):
            small.restore(fleet.index.snapshot())
        assert not small.match(PROMPT)


class TestDumps:
    def dump(self, fleet: Fleet) -> list[Any]:
        (dumped,) = fleet.index.dump_events("w")
        return dumped.events

    def test_a_chain_is_one_event_with_its_namespace(self) -> None:
        fleet = Fleet(keep_tokens=True)
        fleet.apply(store(A, tokens=[1, 2], cache_salt="x"), rank=5)
        fleet.apply(store(B, C, parent=A, tokens=PROMPT[2:6], extra_keys=[None, [["p", 0]]]), rank=5)
        (dumped,) = fleet.index.dump_events("w")
        assert dumped.attn_dp_rank == 5
        assert dumped.events == [
            BlockStored(
                [A, B, C], None, PROMPT[:6], 2, medium="GPU", cache_salt="x", extra_keys=[None, None, [["p", 0]]]
            )
        ]

    def test_pairs_stay_pairs(self) -> None:
        fleet = Fleet(keep_tokens=True)
        pairs = [(1, 2), (2, 3), (3, 4), (4, 5)]
        fleet.apply(store(A, tokens=pairs[:2]), store(B, parent=A, tokens=pairs[2:]))
        assert self.dump(fleet) == [BlockStored([A, B], None, pairs, 2, medium="GPU")]

    def test_a_block_of_a_slower_tier_is_placed_by_way_of_the_gpu(self) -> None:
        fleet = Fleet(keep_tokens=True)
        fleet.apply(AB, bare(A, medium="CPU"), remove(A, B))
        events = self.dump(fleet)
        assert [type(event) for event in events] == [BlockStored, BlockStored, BlockRemoved]
        assert [event.medium for event in events] == ["GPU", "CPU_PINNED", "GPU"]

    def test_without_tokens_there_are_hashes_and_parents_top_down(self, fleet: Fleet) -> None:
        fleet.apply(AB, store(D, parent=A, tokens=[9, 9]), store(C, parent=B, tokens=[5, 6]))
        stores = [(event.block_hashes, event.parent_block_hash, event.token_ids) for event in self.dump(fleet)]
        assert stores == [([A, B, C], None, []), ([D], A, [])]

    def test_without_tokens_the_blocks_are_parked_until_events_place_them(self, fleet: Fleet) -> None:
        fleet.apply(AB)
        other = Fleet()
        assert other.apply(*self.dump(fleet)).parked == 2
        other.apply(AB)
        assert other.total() == 2
        other.apply(remove(A, B))
        assert other.total() == 2, "both copies are counted"

    def test_a_worker_that_is_not_there_has_none(self, fleet: Fleet) -> None:
        assert fleet.index.dump_events("nobody") == []
