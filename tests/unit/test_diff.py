"""What an index believes against what an engine holds."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents import cli
from kvevents.diff import DiffReport, capture_side, compare, index_side, read_index
from kvevents.diff.compare import RankBlocks
from kvevents.errors import ConfigError, WireError
from kvevents.events import BlockRemoved, BlockStored, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport import CaptureReader, CaptureWriter
from kvevents.transport.capture import CaptureSource
from kvevents.wire import encode_batch

SOURCE = CaptureSource("w", 0, block_size=2)
CHAIN = BlockStored([1, 2, 3, 4], None, list(range(8)), 2, medium="GPU")
BELOW = BlockStored([5, 6], 2, [20, 21, 22, 23], 2, medium="GPU")


def side(*blocks: int, tier: str = "GPU", sequence: int | None = 0) -> dict[tuple[str, int], RankBlocks]:
    parents = {1: None, 2: 1, 3: 2, 4: 3, 5: 2, 6: 5}
    return {("w", 0): RankBlocks(sequence, {tier: set(blocks)}, {block: parents[block] for block in blocks})}


def batch(*events: Any) -> bytes:
    return encode_batch(KVEventBatch(0.0, list(events), 0))


def test_what_hangs_together_is_one_branch_with_its_place() -> None:
    report = compare(side(1, 2, 3, 4, 5, 6), side(1, 2))
    (rank,) = report.ranks
    assert [(tier.tier, tier.both, tier.stale, tier.missing) for tier in rank.tiers] == [("GPU", 2, 4, 0)]
    assert [(one.side, one.first, one.root, one.depth, one.blocks) for one in rank.branches] == [
        ("stale", f"{3:016x}", f"{1:016x}", 2, 2),
        ("stale", f"{5:016x}", f"{1:016x}", 2, 2),
    ]
    assert not report.is_equal


def test_blocks_whose_place_nobody_knows_are_counted_all_the_same() -> None:
    engine = {("w", 0): RankBlocks(0, {"GPU": {7, 8}}, {})}
    (rank,) = compare(side(), engine).ranks
    assert (
        sorted((one.side, one.root, one.depth, one.blocks) for one in rank.branches) == [("missing", None, None, 1)] * 2
    )


def test_a_worker_that_the_index_does_not_know_is_told_and_others_of_the_index_are_not_compared() -> None:
    index = side(1) | {("other", 0): RankBlocks(0, {"GPU": {9}}, {})}
    report = compare(index, side(1) | {("new", 0): RankBlocks(0, {}, {})})
    assert report.unknown_workers == ["new"]
    assert [rank.worker for rank in report.ranks] == ["w"]


def test_tiers_are_apart_and_moments_are_compared() -> None:
    (rank,) = compare(side(1, sequence=3), side(1, tier="DISK", sequence=4)).ranks
    assert {tier.tier: (tier.stale, tier.missing) for tier in rank.tiers} == {"GPU": (1, 0), "DISK": (0, 1)}
    assert not rank.is_same_moment


@given(st.sets(st.integers(1, 6)), st.sets(st.integers(1, 6)))
def test_every_block_that_differs_is_in_one_branch(believed: set[int], held: set[int]) -> None:
    there, back = compare(side(*believed), side(*held)), compare(side(*held), side(*believed))
    (rank,) = there.ranks
    assert there.is_equal == (believed == held)
    assert sum(branch.blocks for branch in rank.branches) == len(believed ^ held) == rank.differing_blocks
    assert [(t.stale, t.missing) for t in back.ranks[0].tiers] == [(t.missing, t.stale) for t in rank.tiers]


def test_parents_that_go_in_a_circle_end() -> None:
    circle = {("w", 0): RankBlocks(0, {"GPU": {1, 2}}, {1: 2, 2: 1})}
    assert sum(branch.blocks for branch in compare(circle, side()).ranks[0].branches) == 2


def test_a_capture_counts_up_to_what_the_index_has_seen(tmp_path: Path) -> None:
    stream = [batch(CHAIN), batch(BELOW), batch(BlockRemoved([6, 5], medium="GPU"))]
    with CaptureWriter(tmp_path, raw=True) as writer:
        for number, data in enumerate(stream):
            writer.write_batch(SOURCE, data, sequence=number)
    for seen in range(1, 4):
        index = PrefixIndex(2)
        for number, data in enumerate(stream[:seen]):
            index.apply("w", data, seq=number)
        believed = index_side(index)
        until = {key: blocks.sequence for key, blocks in believed.items()}
        assert compare(believed, capture_side(CaptureReader(tmp_path), until=until, worker=None)).is_equal
    index.apply("w", batch(BlockRemoved([4], medium="GPU")))  # nobody else was told
    (rank,) = compare(index_side(index), capture_side(CaptureReader(tmp_path), until={}, worker=None)).ranks
    assert [(one.side, one.blocks, one.depth) for one in rank.branches] == [("missing", 1, 3)]


def test_a_pseudonymous_capture_is_refused(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path) as writer:
        writer.write_batch(SOURCE, batch(CHAIN), sequence=0)
    with pytest.raises(ConfigError, match="record with --keep-hashes"):
        capture_side(CaptureReader(tmp_path), until={}, worker=None)


def test_what_is_no_snapshot_and_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "index.bin").write_bytes(b"nothing of the kind")
    with pytest.raises(WireError, match=r"index\.bin"):
        read_index(str(tmp_path / "index.bin"))
    with pytest.raises(ConfigError, match="expected a router's URL or a snapshot in a file"):
        read_index(str(tmp_path / "none"))


def test_the_command_compares_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captures, saved = tmp_path / "captures", tmp_path / "index.bin"
    with CaptureWriter(captures, keep_hashes=True) as writer:
        writer.write_batch(SOURCE, batch(CHAIN), sequence=0)
    index = PrefixIndex(2)
    index.apply("worker-1", batch(CHAIN), seq=0)
    saved.write_bytes(index.snapshot())
    assert cli.main(["diff", str(saved), str(captures)]) == cli.USAGE
    assert "knows no worker w (it knows worker-1)" in capsys.readouterr().err
    assert cli.main(["diff", str(saved), str(captures), "--worker", "worker-1"]) == cli.DONE
    assert capsys.readouterr().out.rstrip().endswith("equal")
    index.apply("worker-1", batch(BELOW), seq=0)
    saved.write_bytes(index.snapshot())
    index.apply("worker-1", batch(BELOW))
    saved.write_bytes(index.snapshot())
    assert cli.main(["diff", str(saved), str(captures), "--worker", "worker-1", "--json"]) == cli.ANSWER_IS_NO
    report = msgspec.json.decode(capsys.readouterr().out, type=DiffReport)
    assert report.ranks[0].differing_blocks == 2


def test_what_an_engine_held_before_its_restart_is_not_held_after_it(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path, keep_hashes=True) as writer:
        writer.write_batch(SOURCE, batch(CHAIN), sequence=0)
        writer.write_reset(SOURCE)
        writer.write_batch(SOURCE, batch(BlockStored([9], None, [1, 2], 2, medium="GPU")), sequence=0)
    held = capture_side(CaptureReader(tmp_path), until={}, worker=None)
    assert held["w", 0].tiers["GPU"] == {9}


def test_a_capture_with_nothing_in_it_is_equal_to_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "index.bin"
    saved.write_bytes(PrefixIndex(2).snapshot())
    damaged = tmp_path / "damaged.kvcap"
    damaged.write_bytes(b"none at all")
    assert cli.main(["diff", str(saved), str(damaged)]) == cli.USAGE
    assert "found none" in capsys.readouterr().err
