"""One worker's blocks as bytes, and into an index that holds other things."""

import pytest

from index_feed import AB, PROMPT, A, B, C, D, Fleet, bare, remove, store
from kvevents.errors import CapacityError, WireError


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def move(fleet: Fleet, other: Fleet, worker: str = "w", name: str = "w", rank: int | None = None) -> None:
    for image in fleet.index.snapshot_worker(worker):
        other.index.restore_worker(name, image, dp_rank=rank)
        other.index.check_integrity()


class TestImages:
    def test_they_come_in_beside_other_workers_and_go_on(self, fleet: Fleet) -> None:
        fleet.apply(AB, AB, bare(D, medium="CPU"), store(D, parent=C, tokens=[7, 8]), rank=0, seq=41)
        other = Fleet()
        other.apply(AB, worker="x", seq=5)
        move(fleet, other, name="y")
        assert [(m.worker, m.dp_rank, m.total) for m in other.index.match(PROMPT)] == [("x", None, 2), ("y", 0, 2)]
        assert other.apply(remove(A), worker="y", rank=0, seq=41).ignored == "duplicate"
        other.apply(store(C, parent=B, tokens=[5, 6]), remove(A), worker="y", rank=0, seq=42)
        assert {m.worker: m.total for m in other.index.match(PROMPT)} == {"x": 2, "y": 4}
        other.index.clear_worker("y")
        other.index.check_integrity()
        assert [(m.worker, m.total) for m in other.index.match(PROMPT)] == [("x", 2)]

    def test_they_replace_what_the_rank_held(self, fleet: Fleet) -> None:
        fleet.apply(AB)
        other = Fleet()
        other.apply(AB, store(C, parent=B, tokens=[5, 6]), seq=9)
        move(fleet, other)
        assert other.total() == 2
        assert other.apply(remove(B), seq=1).removed == 1, "the image had no sequence"

    def test_each_rank_has_its_own_and_the_rank_in_it_counts(self, fleet: Fleet) -> None:
        fleet.apply(AB, rank=0)
        fleet.apply(store(A, tokens=PROMPT[:2]), rank=1)
        assert len(fleet.index.snapshot_worker("w")) == 2
        (image,) = fleet.index.snapshot_worker("w", 1)
        other = Fleet()
        assert other.index.restore_worker("w", image, seq=7, dp_rank=5).dp_rank == 1
        assert [(m.dp_rank, m.total) for m in other.index.match(PROMPT)] == [(1, 1)]
        assert [source.last_seq for source in other.index.stats().sources] == [7]

    def test_they_hold_neither_tokens_nor_salts_nor_adapters(self) -> None:
        fleet = Fleet(keep_tokens=True)
        tokens = [0xABCDEF01, 0xABCDEF02]
        fleet.apply(store(A, tokens=tokens, cache_salt="secret-salt", lora_name="secret-adapter"))
        (image,) = fleet.index.snapshot_worker("w")
        assert b"secret" not in image
        assert tokens[0].to_bytes(4, "little") not in image
        other = Fleet()
        move(fleet, other)
        assert other.total(tokens, cache_salt="secret-salt", lora_name="secret-adapter") == 1
        assert other.total(tokens) == 0

    def test_a_block_size_that_contradicts_is_loud(self, fleet: Fleet) -> None:
        fleet.apply(AB)
        other = Fleet()
        other.index.add_worker("w", block_size=64)
        (image,) = fleet.index.snapshot_worker("w")
        report = other.index.restore_worker("w", image)
        assert "expected blocks of 64 as registered" in str(report.error)
        assert other.total() == 0
        other.index.check_integrity()

    def test_copies_count_only_where_they_are_counted(self, fleet: Fleet) -> None:
        fleet.apply(AB, AB)
        for residency, left in (("counted", 2), ("set", 1)):
            other = Fleet()
            other.index.add_worker("w", residency=residency)  # type: ignore[arg-type]
            move(fleet, other)
            other.apply(remove(B))
            assert other.total() == left

    def test_an_id_that_was_removed_stays_so(self, fleet: Fleet) -> None:
        fleet.apply(AB)
        (image,) = fleet.index.snapshot_worker("w")
        fleet.index.remove_worker("w")
        assert fleet.index.restore_worker("w", image).ignored == "worker-removed"
        assert fleet.index.snapshot_worker("w") == []

    def test_there_is_a_limit_to_sources(self, fleet: Fleet) -> None:
        fleet.apply(AB)
        (image,) = fleet.index.snapshot_worker("w")
        other = Fleet(max_sources=1)
        other.apply(AB, worker="x")
        with pytest.raises(CapacityError):
            other.index.restore_worker("w", image)

    def test_bytes_that_are_no_image_change_nothing(self, fleet: Fleet) -> None:
        fleet.apply(AB, bare(D, medium="CPU"), store(D, parent=C, tokens=[7, 8]))
        (image,) = fleet.index.snapshot_worker("w")
        bad = [image[:length] for length in range(len(image))]
        bad += [image[:place] + bytes([image[place] ^ 1]) + image[place + 1 :] for place in range(len(image))]
        bad += [fleet.index.snapshot(), image + b"\0"]
        for data in bad:
            with pytest.raises(WireError):
                fleet.index.restore_worker("w", data)
        assert fleet.total() == 2
