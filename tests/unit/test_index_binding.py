"""How blocks get their places: order, forms, namespaces, masks."""

from typing import Any

import msgspec
import pytest

from index_feed import AB, PROMPT, A, B, C, D, Fleet, remove, store
from kvevents.events import BlockStored


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


class TestOutOfOrder:
    def test_a_child_before_its_parent_counts_when_the_parent_comes(self, fleet: Fleet) -> None:
        assert fleet.apply(store(C, parent=B, tokens=[5, 6])).pending == 1
        assert fleet.total() == 0
        assert fleet.total([5, 6]) == 0
        assert fleet.apply(AB).pending == 0
        assert fleet.total() == 3

    def test_within_one_batch_too_and_in_any_order(self, fleet: Fleet) -> None:
        fleet.apply(
            store(D, parent=C, tokens=[7, 8]), store(B, C, parent=A, tokens=[3, 4, 5, 6]), store(A, tokens=[1, 2])
        )
        assert fleet.total() == 4

    def test_pending_blocks_are_counted_in_blocks_and_bounded(self) -> None:
        fleet = Fleet(max_pending_blocks=2)
        report = fleet.apply(store(B, parent=A, tokens=[3, 4]), store(C, D, parent=B, tokens=PROMPT[4:]))
        assert (report.pending, report.dropped) == (2, 1)
        fleet.apply(store(A, tokens=[1, 2]))
        assert fleet.total() == 1, "the oldest, next to the parent, was dropped"
        fleet.apply(store(B, parent=A, tokens=[3, 4]))
        assert fleet.total() == 4

    def test_of_one_event_that_is_too_large_the_first_wait_and_the_rest_is_dropped(self) -> None:
        fleet = Fleet(max_pending_blocks=2)
        report = fleet.apply(store(B, C, D, parent=A, tokens=PROMPT[2:]))
        assert (report.pending, report.dropped) == (2, 1)
        fleet.apply(store(A, tokens=[1, 2]))
        assert fleet.total() == 3
        assert fleet.index.stats().sources[0].dropped == 1

    def test_pending_blocks_are_bounded_by_the_bytes_they_take(self) -> None:
        fleet = Fleet(1024, max_pending_bytes=10_000)
        tokens = list(range(2048))
        report = fleet.apply(store(B, C, parent=A, tokens=tokens, block_size=1024))
        assert (report.pending, report.dropped) == (2, 0)
        report = fleet.apply(store(D, parent=C, tokens=tokens[:1024], block_size=1024))
        assert (report.pending, report.dropped) == (2, 1)
        report = fleet.apply(store(99, parent=98, tokens=list(range(4096)), block_size=1024 * 4))
        assert report.error is not None
        fleet = Fleet(1024, max_pending_bytes=10_000)
        report = fleet.apply(store(99, parent=98, tokens=list(range(4096)), block_size=1024 * 4))
        assert (report.pending, report.dropped) == (0, 1)

    def test_pending_blocks_are_bounded_by_age(self) -> None:
        fleet = Fleet(max_pending_age_s=0.0)
        fleet.apply(store(C, parent=B, tokens=[5, 6]))
        report = fleet.apply()
        assert (report.pending, report.dropped) == (0, 1)

    def test_an_inner_block_removed_and_stored_again_makes_those_below_count_again(self, fleet: Fleet) -> None:
        fleet.apply(store(A, B, C, tokens=PROMPT[:6]), remove(B))
        assert fleet.total() == 1
        fleet.apply(store(B, parent=A, tokens=[3, 4]))
        assert fleet.total() == 3

    def test_a_pending_block_that_is_removed_does_not_come_back(self, fleet: Fleet) -> None:
        fleet.apply(store(C, parent=B, tokens=[5, 6]), remove(C), AB)
        assert fleet.total() == 2

    def test_a_circle_that_a_root_cuts_leaves_no_block_that_nobody_needs(self, fleet: Fleet) -> None:
        """D waits below C, C below B, B below A, and A below D; D is gone when A turns out to be a root."""
        fleet.apply(store(D, A, parent=C, tokens=[7, 8, 1, 2]), remove(D))
        fleet.apply(store(B, C, parent=A, tokens=[3, 4, 5, 6]))
        fleet.apply(store(A, tokens=[1, 2]))
        assert fleet.total() == 3


def test_a_store_with_an_unknown_parent_is_never_a_root(fleet: Fleet) -> None:
    fleet.apply(store(C, parent=B, tokens=[5, 6]))
    assert fleet.total([5, 6]) == 0
    fleet.apply(store(D, parent=0, tokens=[5, 6]))
    assert fleet.total([5, 6]) == 0, "a parent of 0 is a parent"


class TestForms:
    def test_bytes_unsigned_and_signed_forms_of_a_hash_are_one_key(self, fleet: Fleet) -> None:
        digest = bytes(range(24)) + (2**63 + 5).to_bytes(8, "big")
        fleet.apply(store(digest, tokens=[1, 2]))
        assert fleet.apply(store(B, parent=2**63 + 5, tokens=[3, 4])).pending == 0
        assert fleet.total() == 2
        assert fleet.index.holdings("w")[None]["GPU"] == {2**63 + 5 - 2**64, B}
        assert fleet.apply(remove(2**63 + 5 - 2**64)).removal_misses == 0
        assert fleet.total() == 0

    def test_zero_is_a_hash_and_only_null_means_no_parent(self, fleet: Fleet) -> None:
        fleet.apply(store(0, tokens=[1, 2]), store(B, parent=0, tokens=[3, 4]))
        assert fleet.total() == 2

    def test_dialects_are_mixed_in_one_batch_and_an_unknown_tag_is_skipped(self, fleet: Fleet) -> None:
        events = [
            ["BlockStored", [A], None, [1, 2], 2],
            ["BlockStored", [B], A, [3, 4], 2, None, "GPU", None, None, None],
            ["BlockMoved", [A]],
            {"type": "BlockStored", "block_hashes": [C], "parent_block_hash": B, "token_ids": [5, 6], "block_size": 2}
            | {"lora_id": None, "medium": "GPU", "not_known": {"x": 1}},
        ]
        report = fleet.index.apply("w", msgspec.msgpack.encode([0.0, events, None]))
        assert [event.code for event in report.skipped] == ["unknown-tag"]
        assert (fleet.total(), report.events) == (3, 3)

    def test_pairs_are_the_sequence_they_come_from(self, fleet: Fleet) -> None:
        pairs: Any = [(1, 2), (2, 3), (3, 4), (4, 5)]
        assert fleet.apply(store(A, B, tokens=pairs)).stored == 2
        assert fleet.total([1, 2, 3, 4, 5]) == 2
        assert fleet.total([1, 2, 3, 4]) == 1, "the second block covers the token after it"
        fleet.apply(store(C, parent=B, tokens=[(5, 6), (6, 7)]))
        assert fleet.total([1, 2, 3, 4, 5, 6, 7]) == 3


class TestNamespaces:
    def test_salts_adapters_and_images_are_seven_disjoint_matches(self, fleet: Fleet) -> None:
        namespaces: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"cache_salt": "x"}, {"cache_salt": "x"}),
            ({"extra_keys": [["y"], None]}, {"cache_salt": "y"}),
            ({}, {}),
            ({"lora_name": "m"}, {"lora_name": "m"}),
            ({"lora_name": "n", "lora_id": 1, "extra_keys": [["n"], ["n"]]}, {"lora_name": "n"}),
            ({"extra_keys": [[["p", 0]], [["p", -2]]]}, {"extra_keys": [[["p", 0]], [["p", -2]]]}),
            ({"extra_keys": [[["q", 0]], [["q", -2]]]}, {"extra_keys": [[("q", 0)], [("q", -2)]]}),
        ]
        for number, (fields, _) in enumerate(namespaces):
            fleet.apply(store(2 * number, 2 * number + 1, tokens=PROMPT[:4], **fields), worker=str(number))
        for number, (_, question) in enumerate(namespaces):
            found = [(match.worker, match.total) for match in fleet.index.match(PROMPT, **question)]
            assert found == [(str(number), 2)]

    def test_an_image_leaves_the_blocks_before_it_shared(self, fleet: Fleet) -> None:
        fleet.apply(store(A, B, C, D, tokens=PROMPT, extra_keys=[None, None, [["p", 0]], [["p", -2]]]))
        assert fleet.total() == 2
        assert fleet.total(extra_keys=[None, None, [["q", 0]], [["q", -2]]]) == 2
        assert fleet.total(extra_keys=[None, None, [["p", 0]], [["p", -2]]]) == 4

    def test_salt_adapter_and_image_come_apart_in_one_entry(self, fleet: Fleet) -> None:
        entry = ["m", ["p", 0], "x", b"\x01\x02"]
        fleet.apply(store(A, B, tokens=PROMPT[:4], lora_name="m", extra_keys=[entry, ["m"]]))
        question: dict[str, Any] = {"lora_name": "m", "cache_salt": "x", "extra_keys": [[["p", 0], b"\x01\x02"]]}
        assert fleet.total(**question) == 2
        assert fleet.total(**(question | {"cache_salt": "y"})) == 0
        assert fleet.total(**(question | {"extra_keys": [[["p", 0], b"\x01\x03"]]})) == 0

    def test_an_adapter_without_a_name_goes_by_its_number(self, fleet: Fleet) -> None:
        fleet.apply(store(A, tokens=[1, 2], lora_id=7))
        assert (fleet.total(lora_id=7), fleet.total(lora_id=8), fleet.total(), fleet.total(lora_name="7")) == (
            1,
            0,
            0,
            0,
        )


class TestMaskedStores:
    MASKED = BlockStored([B, D], None, PROMPT, 2, medium="GPU", group_idx=1)

    def test_they_never_bind_their_hashes_to_the_first_chunks(self, fleet: Fleet) -> None:
        report = fleet.apply(BlockStored([B, D], None, PROMPT, 2, medium="GPU"))
        assert (report.parked, report.unaligned) == (2, 2)
        assert fleet.total() == 0

    def test_they_count_once_another_event_places_the_same_hashes(self, fleet: Fleet) -> None:
        report = fleet.apply(self.MASKED, store(A, B, C, tokens=PROMPT[:6]))
        assert (report.parked, report.unaligned) == (1, 1)
        assert fleet.total() == 3
        assert fleet.index.stats().sources[0].unaligned == 1


class TestAcrossTenants:
    def test_a_cpu_store_of_a_salted_root_never_hits_for_the_unsalted_prompt(self, fleet: Fleet) -> None:
        fleet.apply(store(A, B, tokens=PROMPT[:4], medium="CPU"))
        assert fleet.total() == 0
        fleet.apply(store(A, B, tokens=PROMPT[:4], extra_keys=[["x"], None]))
        assert (fleet.total(), fleet.total(cache_salt="x")) == (0, 2)

    def test_a_masked_groups_root_without_its_salt_does_not_either(self, fleet: Fleet) -> None:
        window: dict[str, Any] = {
            "group_idx": 0,
            "kv_cache_spec_kind": "sliding_window",
            "kv_cache_spec_sliding_window": 64,
        }
        fleet.apply(store(A, B, tokens=PROMPT[:4], **window))
        assert fleet.total() == 0

    def test_below_a_salted_block_a_cpu_store_inherits_the_salt(self, fleet: Fleet) -> None:
        fleet.apply(store(A, tokens=[1, 2], cache_salt="x"), store(B, parent=A, tokens=[3, 4], medium="CPU"))
        assert (fleet.total(), fleet.total(cache_salt="x")) == (0, 2)
