"""What callers of the index see: answers, reports, limits, errors."""

import doctest
from array import array
from typing import Any, ClassVar

import msgspec
import pytest

import kvevents.index
from index_feed import AB, PROMPT, A, B, C, D, Fleet, bare, batch, remove, store
from kvevents.errors import CapacityError, ConfigError, WireError
from kvevents.events import AllBlocksCleared, SkippedEvent, StorageMedium
from kvevents.index import GroupSpec, PrefixIndex, Prompt, WorkerMatch
from kvevents.wire import encode_batch


def test_the_example_in_the_docs_is_true() -> None:
    results = doctest.testmod(kvevents.index)
    assert results.attempted > 0
    assert results.failed == 0


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


class TestMatches:
    def test_best_first_by_usable_then_by_what_is_fastest_on_the_gpu_then_by_id(self, fleet: Fleet) -> None:
        fleet.apply(store(A, tokens=[1, 2]), worker="short")
        fleet.apply(AB, worker="b")
        fleet.apply(AB, worker="a")
        fleet.apply(AB, bare(A, B, medium="CPU"), remove(B), worker="slower")
        fleet.apply(store(D, tokens=[7, 8]), worker="other")
        matches = fleet.index.match(PROMPT)
        assert [match.worker for match in matches] == ["a", "b", "slower", "short"]
        assert [match.usable for match in matches] == [2, 2, 2, 1]

    def test_they_are_a_sequence(self, fleet: Fleet) -> None:
        for worker in ("a", "b", "c"):
            fleet.apply(AB, worker=worker)
        matches = fleet.index.match(PROMPT)
        assert (len(matches), matches[-1].worker, matches[1:][0].worker) == (3, "c", "b")
        assert matches[0] in matches
        assert next(reversed(matches)) == matches[2]
        assert matches == fleet.index.match(array("I", PROMPT)) == list(matches)
        assert matches != fleet.index.match(PROMPT[:2])
        with pytest.raises(IndexError):
            matches[3]
        assert repr(matches).startswith("Matches([WorkerMatch(worker='a'")

    def test_every_tier_is_in_every_answer(self, fleet: Fleet) -> None:
        fleet.apply(AB)
        (match,) = fleet.index.match(PROMPT)
        none_elsewhere = {"GPU": 2, "CPU_PINNED": 0, "DISK": 0, "EXTERNAL": 0}
        assert match == WorkerMatch("w", None, 2, none_elsewhere, none_elsewhere, 2, "live")
        assert match.tiers[StorageMedium.GPU] == 2
        assert msgspec.json.decode(msgspec.json.encode(match), type=WorkerMatch) == match

    def test_what_is_below_a_hole_is_no_match(self, fleet: Fleet) -> None:
        fleet.apply(AB, remove(A))
        assert not fleet.index.match(PROMPT)

    def test_many_prompts_at_once_with_namespaces_of_their_own(self, fleet: Fleet) -> None:
        fleet.apply(AB, store(C, tokens=[1, 2], cache_salt="x", extra_keys=[[["p", 0]]]))
        prompts: list[Any] = [PROMPT, Prompt(PROMPT, cache_salt="x", extra_keys=[[["p", 0]]]), array("q", [1, 2]), []]
        found = fleet.index.match_many(prompts)
        assert [[match.total for match in matches] for matches in found] == [[2], [1], [1], []]

    @pytest.mark.parametrize("tokens", [array("I"), array("i"), array("q"), array("Q")])
    def test_tokens_come_in_any_integer_buffer(self, fleet: Fleet, tokens: "array[int]") -> None:
        fleet.apply(AB)
        tokens.extend(PROMPT)
        assert fleet.index.match(tokens)[0].total == 2
        assert fleet.index.match(memoryview(tokens))[0].total == 2

    def test_tokens_that_are_none_are_refused(self, fleet: Fleet) -> None:
        with pytest.raises(ValueError, match="got -1 at position 1"):
            fleet.index.match([1, -1])
        with pytest.raises(TypeError, match="token ids"):
            fleet.index.match(["a"])  # type: ignore[list-item]

    @pytest.mark.parametrize("extra_keys", ["images", [1], {"a": 1}, [None, "p"]])
    def test_extra_keys_that_are_none_are_refused(self, fleet: Fleet, extra_keys: Any) -> None:
        with pytest.raises(TypeError, match="extra_keys: expected a list"):
            fleet.index.match(PROMPT, extra_keys=extra_keys)

    def test_wide_ids_are_themselves(self, fleet: Fleet) -> None:
        fleet.apply(store(A, tokens=[2**40 + 1, 2]))
        assert fleet.total([2**40 + 1, 2]) == 1
        assert fleet.total([1, 2]) == 0


class TestImagesAcrossGeometries:
    TOKENS: ClassVar[list[int]] = list(range(16))

    def ask(self, index_block: int, engine_block: int, stored: list[Any], asked: list[Any]) -> int:
        fleet = Fleet(index_block)
        blocks = len(self.TOKENS) // engine_block
        fleet.apply(store(*range(blocks), tokens=self.TOKENS, block_size=engine_block, extra_keys=stored))
        return fleet.total(self.TOKENS, extra_keys=asked)

    def test_larger_blocks_take_over_the_images_of_those_they_are_made_of(self) -> None:
        # Image p covers tokens 3 to 9, image q begins at 10.
        stored = [[["p", 3]], [["p", -5], ["q", 2]]]
        asked = [[["p", 3]], [["p", -1]], [["p", -5], ["q", 2]], [["q", -2]]]
        assert self.ask(4, 8, stored, asked) == 4
        assert self.ask(4, 8, stored, [*asked[:3], [["q", -1]]]) == 2
        assert self.ask(4, 8, stored, [[["x", 3]], *asked[1:]]) == 0

    def test_for_smaller_blocks_nothing_is_known_from_the_first_image_on(self) -> None:
        stored = [None, None, None, [["p", 1]], None, None, None, None]
        assert self.ask(4, 2, stored, [None, [["p", 3]], None, None]) == 1
        assert self.ask(4, 2, [None] * 8, [None, None, None, None]) == 4

    def test_embeddings_cannot_be_cut_anew(self) -> None:
        assert self.ask(4, 4, [None, [b"e"], None, None], [None, [b"e"]]) == 4
        assert self.ask(4, 8, [None, [b"e"]], [None, None, [b"e"]]) == 2


class TestApply:
    def test_bytes_buffers_and_batches_are_all_the_same(self, fleet: Fleet) -> None:
        data = encode_batch(batch(AB))
        forms: dict[str, Any] = {"a": data, "b": bytearray(data), "c": memoryview(data), "d": batch(AB)}
        for worker, form in forms.items():
            assert fleet.index.apply(worker, form).stored == 2
        assert [match.total for match in fleet.index.match(PROMPT)] == [2, 2, 2, 2]

    @pytest.mark.parametrize("cut", [0, 1, 20, -1])
    def test_broken_bytes_apply_nothing(self, fleet: Fleet, cut: int) -> None:
        data = encode_batch(batch(AB, AB))[:cut]
        with pytest.raises(WireError) as caught:
            fleet.index.apply("w", data)
        assert caught.value.offset <= len(data)
        assert not fleet.index.stats().workers

    def test_an_event_that_cannot_be_used_is_skipped_and_the_others_apply(self, fleet: Fleet) -> None:
        events = [
            {
                "type": "BlockStored",
                "block_hashes": "none",
                "parent_block_hash": None,
                "token_ids": [],
                "block_size": 2,
            },
            msgspec.to_builtins(AB),
        ]
        report = fleet.index.apply("w", msgspec.msgpack.encode([0.0, events]))
        assert [(type(event), event.code) for event in report.skipped] == [(SkippedEvent, "wrong-type")]
        assert fleet.total() == 2

    @pytest.mark.parametrize("size", [0, 2**32])
    def test_a_block_size_that_cannot_be_one_is_skipped(self, fleet: Fleet, size: int) -> None:
        report = fleet.apply(store(A, tokens=[1, 2], block_size=size))
        assert [event.code for event in report.skipped] == ["bad-block-size"]
        assert (report.events, report.stored) == (0, 0)

    def test_groups_are_bounded(self, fleet: Fleet) -> None:
        reports = [fleet.apply(bare(A, medium="CPU", group_idx=number)) for number in range(40)]
        assert sum(report.stored for report in reports) == 32
        assert reports[32].skipped[0].code == "too-many-groups"

    def test_the_report_counts_what_happened(self, fleet: Fleet) -> None:
        report = fleet.apply(
            AB, bare(C, medium="CPU"), store(D, parent=9, tokens=[7, 8]), remove(B, 5), AllBlocksCleared(), AB, rank=4
        )
        assert (report.events, report.stored, report.removed, report.removal_misses) == (6, 6, 1, 1)
        assert (report.cleared, report.pending, report.parked, report.dp_rank) == (1, 0, 0, 4)
        assert "stored=6" in repr(report)
        with pytest.raises(AttributeError):
            report.stored = 3  # type: ignore[misc]

    def test_an_empty_store_is_no_trouble(self, fleet: Fleet) -> None:
        assert fleet.apply(store(tokens=[]), remove()).events == 2


class TestWorkers:
    def test_settings_out_of_range_are_refused(self, fleet: Fleet) -> None:
        for size in (0, -1, 2**32):
            with pytest.raises(ConfigError, match="block_size"):
                PrefixIndex(size)
            with pytest.raises(ConfigError, match="block_size"):
                fleet.index.add_worker("w", block_size=size)
        with pytest.raises(ConfigError, match="residency"):
            fleet.index.add_worker("w", residency="some")  # type: ignore[arg-type]
        for setting in ("max_pending_blocks", "max_pending_age_s", "max_parked_blocks", "max_parked_age_s"):
            with pytest.raises(ConfigError, match=setting):
                PrefixIndex(2, **{setting: -1})  # type: ignore[arg-type]
        PrefixIndex(2, max_pending_age_s=float("inf"))

    def test_adding_twice_is_adding_once_unless_the_settings_differ(self, fleet: Fleet) -> None:
        handle = fleet.index.add_worker("w", block_size=2)
        assert fleet.index.add_worker("w") == handle
        assert hash(fleet.index.add_worker("w", block_size=4)) == hash(handle), "it holds nothing yet"
        assert fleet.apply(AB, worker=handle).error is not None
        fleet.index.add_worker("w", block_size=2)
        fleet.apply(AB, worker=handle)
        with pytest.raises(ConfigError, match="holds blocks"):
            fleet.index.add_worker("w", block_size=4)
        assert fleet.total() == 2
        assert handle.id == "w"

    def test_a_handle_of_another_index_is_refused(self, fleet: Fleet) -> None:
        stranger = PrefixIndex(2).add_worker("w")
        with pytest.raises(ConfigError, match="another index"):
            fleet.index.apply(stranger, batch(AB))

    def test_the_number_of_sources_is_bounded(self) -> None:
        index = PrefixIndex(2, max_sources=2)
        index.add_worker("a")
        for rank in (0, 1):
            index.apply("a", batch(AB, rank=rank))
        for refused in (
            lambda: index.apply("a", batch(AB, rank=2)),
            lambda: index.apply("b", batch(AB)),
            lambda: index.add_worker("b"),
            lambda: index.set_state("b", None, "live"),
        ):
            with pytest.raises(CapacityError) as caught:
                refused()
            assert (caught.value.requested, caught.value.available) == (3, 2)
        assert index.remove_worker("a")
        assert not index.remove_worker("a")
        assert index.apply("b", batch(AB)).stored == 2

    def test_groups_can_be_declared_where_events_do_not_say_their_kind(self, fleet: Fleet) -> None:
        fleet.index.add_worker("w", groups={0: GroupSpec("sliding_window", 3), 1: GroupSpec("full_attention")})
        fleet.apply(store(A, B, tokens=PROMPT[:4], group_idx=1), store(B, parent=A, tokens=[3, 4], group_idx=0))
        match = fleet.match()
        assert match is not None
        assert (match.total, match.usable) == (2, 2)
        fleet.apply(remove(B, group_idx=0))
        match = fleet.match()
        assert match is not None
        assert (match.total, match.usable) == (2, 0)

    def test_states_come_with_the_matches(self, fleet: Fleet) -> None:
        assert fleet.index.set_state("w", None, "recovering")
        fleet.apply(AB, rank=0)
        fleet.apply(AB, rank=1)
        fleet.index.set_state("w", 1, "lost")
        assert [match.state for match in fleet.index.match(PROMPT)] == ["recovering", "lost"]
        fleet.index.set_state("w", None, "live")
        assert [match.state for match in fleet.index.match(PROMPT)] == ["live", "live"]
        fleet.index.remove_worker("w")
        assert not fleet.index.set_state("w", None, "live")
        assert fleet.index.stats().workers == []

    def test_clearing_forgets_one_rank_or_all(self, fleet: Fleet) -> None:
        for rank in (0, 1, 2):
            fleet.apply(AB, rank=rank, seq=7)
        fleet.index.clear_worker("w", 0)
        assert [match.dp_rank for match in fleet.index.match(PROMPT)] == [1, 2]
        assert [source.last_seq for source in fleet.index.stats().sources] == [None, 7, 7]
        fleet.index.clear_worker("w")
        assert not fleet.index.match(PROMPT)
        fleet.index.clear_worker("nobody")
        assert fleet.apply(AB, rank=0, seq=0).ignored is None


class TestFigures:
    def test_holdings_are_engine_hashes_by_rank_and_tier(self, fleet: Fleet) -> None:
        fleet.apply(store(A, 2**64 - 1, tokens=PROMPT[:4]), bare(C, medium="DISK"), rank=0)
        nothing: set[int] = set()
        assert fleet.index.holdings("w") == {
            0: {"GPU": {A, -1}, "CPU_PINNED": nothing, "DISK": {C}, "EXTERNAL": nothing}
        }
        assert fleet.index.holdings("nobody") == {}

    def test_stats_tell_what_there_is(self, fleet: Fleet) -> None:
        fleet.apply(AB, bare(C, medium="CPU"), store(D, parent=9, tokens=[7, 8]), remove(5), rank=0, seq=3)
        stats = fleet.index.stats()
        (source,) = stats.sources
        assert (stats.blocks, stats.workers) == (2, ["w"])
        assert (source.worker, source.dp_rank, source.block_size, source.bigram) == ("w", 0, 2, False)
        assert (source.pending, source.parked, source.removal_misses, source.last_seq) == (1, 1, 1, 3)
        assert source.tiers == {"GPU": 3, "CPU_PINNED": 1, "DISK": 0, "EXTERNAL": 0}
        assert (source.events, source.stored, source.removed) == (4, 4, 0)
        assert 0 < stats.memory_bytes < 100_000
        assert msgspec.json.encode(stats)

    def test_memory_grows_with_blocks(self, fleet: Fleet) -> None:
        before = fleet.index.stats().memory_bytes
        fleet.apply(store(*range(1, 10_001), tokens=list(range(20_000))))
        per_block = (fleet.index.stats().memory_bytes - before) / 10_000
        assert 50 < per_block < 500
