"""What `identify_scheme` makes of streams that no engine recorded: partial, mixed, wrong."""

from array import array
from typing import Any

import pytest

from kvevents.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.hashing import (
    EventFormat,
    HashChain,
    HashScheme,
    SchemeReport,
    block_digests,
    block_hashes,
    identify_scheme,
)

SIZE = 4


def tokens(prompt: int, blocks: int) -> list[int]:
    return [1000 * prompt + token for token in range(blocks * SIZE)]


def stores(
    scheme: HashScheme, *prompts: int, blocks: int = 3, whole: bool = False, fields: Any = None, **settings: Any
) -> list[KVCacheEvent]:
    """Each prompt in two stores: its first block, the others below it."""
    events: list[KVCacheEvent] = []
    for prompt in prompts:
        ids = tokens(prompt, blocks)
        named: list[BlockHash] = [*block_hashes(ids, SIZE, scheme=scheme, **settings)]
        if whole:
            named = [*block_digests(ids, SIZE, scheme=scheme, **settings)]
        events.append(BlockStored(named[:1], None, ids[:SIZE], SIZE, medium="GPU", **(fields or {})))
        events.append(BlockStored(named[1:], named[0], ids[SIZE:], SIZE, medium="GPU", **(fields or {})))
    return events


def counts(report: SchemeReport) -> tuple[int, int, int]:
    return report.confirmed, report.contradicted, sum(report.unchecked.values())


class TestSchemes:
    @pytest.mark.parametrize(
        "scheme", ["vllm-sha256", "vllm-sha256-cbor", "vllm-xxhash", "vllm-xxhash-cbor", "vllm-builtin"]
    )
    def test_a_scheme_of_vllm_is_told_with_its_seed(self, scheme: HashScheme) -> None:
        report = identify_scheme(stores(scheme, 1, 2, hash_seed="42"))
        assert (report.scheme, report.hash_seed) == (scheme, "42")
        assert counts(report) == (6, 0, 0)
        algorithm = scheme.removeprefix("vllm-").replace("-", "_")
        settings = report.settings
        assert settings["--prefix-caching-hash-algo"] == algorithm
        assert (settings["--block-size"], settings["PYTHONHASHSEED"]) == ("4", "42")

    def test_a_seed_that_is_not_set_is_said_so(self) -> None:
        report = identify_scheme(stores("vllm-sha256", 1))
        assert report.hash_seed == "vllm-none-hash"
        assert report.settings["PYTHONHASHSEED"] == "not set"

    def test_sglang_and_content_hashes_are_told(self) -> None:
        schemes: tuple[HashScheme, ...] = ("sglang", "content")
        for scheme in schemes:
            report = identify_scheme(stores(scheme, 1, 2))
            assert (report.scheme, report.hash_seed, report.hash_form) == (scheme, None, "signed")
            assert counts(report) == (6, 0, 0)
            assert report.settings == {"--page-size": "4"}
            assert report.seeds_tried == ()

    def test_whole_digests_leave_only_the_schemes_of_their_size(self) -> None:
        report = identify_scheme(stores("vllm-xxhash", 1, whole=True, hash_seed="7"))
        assert (report.scheme, report.hash_form) == ("vllm-xxhash", "bytes")
        assert report.schemes_tried == ("vllm-xxhash", "vllm-xxhash-cbor")
        assert report.settings["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] == "0"

    def test_none_hash_is_told_where_it_is_an_address(self) -> None:
        report = identify_scheme(stores("vllm-builtin", 1, 2, hash_seed="3", none_hash=123456789))
        assert (report.scheme, report.none_hash, counts(report)) == ("vllm-builtin", 123456789, (6, 0, 0))
        assert identify_scheme(stores("vllm-builtin", 1, hash_seed="3")).none_hash is None


class TestPartsOfStreams:
    def test_a_middle_is_enough_where_digests_are_whole(self) -> None:
        middle = stores("vllm-sha256", 1, 2, whole=True)[1::2]
        report = identify_scheme(middle)
        assert (report.scheme, report.hash_seed, counts(report)) == ("vllm-sha256", None, (4, 0, 0))
        assert report.reason == "4 blocks have the hashes of vllm-sha256, with a seed that was not tried"

    def test_a_middle_is_enough_for_pythons_hash(self) -> None:
        middle = stores("vllm-builtin", 1, 2, hash_seed="99999")[1::2]
        report = identify_scheme(middle)
        assert (report.scheme, report.hash_seed, counts(report)) == ("vllm-builtin", None, (4, 0, 0))

    def test_a_middle_of_integers_tells_nothing(self) -> None:
        report = identify_scheme(stores("vllm-sha256", 1, 2)[1::2])
        assert report.scheme is None
        assert "no store begins a prompt" in report.reason
        assert report.unchecked == {"no scheme confirms a block": 4}

    def test_blocks_are_counted_once_however_often_they_are_stored(self) -> None:
        events = stores("vllm-sha256", 1)
        assert counts(identify_scheme([*events, AllBlocksCleared(), *events])) == (3, 0, 0)

    def test_only_as_many_blocks_as_asked_for_are_read(self) -> None:
        def stream() -> Any:
            yield from stores("vllm-sha256", 1)
            raise AssertionError("read on")

        assert counts(identify_scheme(stream(), max_blocks=3)) == (3, 0, 0)

    def test_removals_and_clears_tell_nothing(self) -> None:
        report = identify_scheme([BlockRemoved([1]), AllBlocksCleared()])
        assert (report.scheme, report.reason) == (None, "no store tells its blocks' tokens")
        assert report.settings == {}

    def test_stores_without_tokens_masked_or_wrong_are_counted(self) -> None:
        events = [
            BlockStored([1, 2], None, [], 0, medium="CPU"),
            BlockStored([3], None, [1, 2, 3], 2, medium="GPU"),
            BlockStored([4], None, [1, -2], 2, medium="GPU"),
            BlockStored([5], None, [1, 2**64], 2, medium="GPU"),
            BlockStored([6], None, [1, 2], 2, medium="GPU", extra_keys=[[{"a": 1}]]),
            BlockStored([7], None, [1, (2, 3)], 2, medium="GPU"),  # type: ignore[arg-type]  # what is tested
        ]
        assert identify_scheme(events).unchecked == {
            "the store carries no tokens": 2,
            "a masked group lists only the blocks it keeps": 1,
            "the store's fields are no tokens, sizes and hashes": 4,
        }


class TestContradictions:
    def test_another_engines_blocks_are_contradicted(self) -> None:
        report = identify_scheme([*stores("vllm-sha256", 1, 2), *stores("vllm-sha256", 3, hash_seed="5")])
        assert (report.hash_seed, counts(report)) == ("vllm-none-hash", (6, 1, 2))
        assert report.unchecked == {"the block above was not seen": 2}
        assert report.reason.startswith(
            "6 blocks have the hashes of vllm-sha256 with the seed 'vllm-none-hash'; 1 have"
        )

    def test_a_lower_tier_may_have_a_salt_that_it_does_not_tell(self) -> None:
        salted = stores("vllm-sha256", 3, cache_salt="s")
        for event in salted:
            assert isinstance(event, BlockStored)
            event.medium = "CPU"
        report = identify_scheme([*stores("vllm-sha256", 1), *salted])
        assert counts(report) == (3, 0, 3)
        assert "a lower tier or masked group does not tell its namespace" in report.unchecked

    def test_a_hash_from_nowhere_is_no_scheme(self) -> None:
        report = identify_scheme([BlockStored([2**63 + 5], None, [1, 2], 2, medium="GPU")])
        assert (report.scheme, report.hash_form, counts(report)) == (None, "unsigned", (0, 0, 1))
        assert report.schemes_tried == ("vllm-sha256", "vllm-sha256-cbor", "vllm-xxhash", "vllm-xxhash-cbor")
        assert "PYTHONHASHSEED is random or another" in report.reason

    def test_digests_of_a_foreign_size_are_no_scheme(self) -> None:
        report = identify_scheme([BlockStored([b"\x01" * 20], None, [1, 2], 2, medium="GPU")])
        assert (report.scheme, report.schemes_tried) == (None, ())
        assert report.reason == "no scheme has digests of 20 bytes"

    def test_a_block_that_hash_of_none_was_solved_from_confirms_nothing(self) -> None:
        foreign = [3**40, -(5**27), 7**22]
        ids = tokens(1, 3)
        below = BlockStored(foreign[1:2], foreign[0], ids[SIZE : 2 * SIZE], SIZE, medium="CPU")
        report = identify_scheme([below, BlockStored([*foreign], None, ids, SIZE, medium="GPU")])
        assert (report.scheme, report.none_hash, report.confirmed) == (None, None, 0)


class TestArguments:
    def test_what_is_no_event_is_refused(self) -> None:
        events = stores("sglang", 1)
        for wrong in (None, 5, [events[0], 5], [KVEventBatch(0.0, events)], [b"payload"]):
            with pytest.raises(TypeError, match="events: expected KV cache events, got"):
                identify_scheme(wrong)  # type: ignore[arg-type]  # what is tested
        with pytest.raises(TypeError, match="at position 0; of a batch, pass its events"):
            identify_scheme([KVEventBatch(0.0, events)])  # type: ignore[list-item]  # what is tested

    @pytest.mark.parametrize("clue", ["seeds", "salts", "extra_keys"])
    @pytest.mark.parametrize("wrong", ["42", 42, [42], [None], None])
    def test_clues_are_several_strings(self, clue: str, wrong: Any) -> None:
        with pytest.raises(TypeError, match=f"{clue}: expected several strings, got"):
            identify_scheme(stores("vllm-sha256", 1), **{clue: wrong})

    def test_paths_are_strings_by_name_and_blocks_a_number(self) -> None:
        wrong: Any
        for wrong in (5, ["a"], {"a": 1}, {1: "a"}):
            with pytest.raises(TypeError, match="adapter_paths: expected"):
                identify_scheme([], adapter_paths=wrong)
        for wrong in (0, -1):
            with pytest.raises(ValueError, match="max_blocks: expected at least 1"):
                identify_scheme([], max_blocks=wrong)
        for wrong in ("9", None, 1.5):
            with pytest.raises(TypeError, match="max_blocks: expected an integer"):
                identify_scheme([], max_blocks=wrong)

    def test_fields_may_be_tuples_and_arrays(self) -> None:
        events: Any = stores("sglang", 1)
        for event in events:
            event.block_hashes = array("q", event.block_hashes)
            event.token_ids = tuple(event.token_ids)
        assert counts(identify_scheme(events)) == (3, 0, 0)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"block_hashes": ["a"]},
            {"parent_block_hash": 1.5},
            {"token_ids": [1.5, 2]},
            {"token_ids": [(1,), (2, 3)]},
            {"token_ids": {1, 2}},
            {"block_size": "2"},
            {"medium": 5},
            {"lora_name": 5},
            {"lora_id": "a"},
            {"cache_salt": b"s"},
            {"kv_cache_spec_kind": 1},
        ],
        ids=str,
    )
    def test_a_store_with_fields_of_wrong_types_is_none_of_the_samples(self, wrong: dict[str, Any]) -> None:
        fields: dict[str, Any] = {"block_hashes": [4], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2}
        report = identify_scheme([BlockStored(**(fields | wrong)), *stores("sglang", 1)])
        assert counts(report)[:2] == (3, 0)
        assert list(report.unchecked) == ["the store's fields are no tokens, sizes and hashes"]


class TestNamespaces:
    def adapter(self) -> list[KVCacheEvent]:
        events = stores("vllm-sha256", 2, extra_key="ad", adapter_path="/p")
        for event in events:
            assert isinstance(event, BlockStored)
            event.lora_name = "ad"
            event.extra_keys = [["ad"] for _ in event.block_hashes]
        return events

    def test_an_adapters_blocks_are_confirmed_by_its_path(self) -> None:
        events = [*stores("vllm-sha256", 1), *self.adapter()]
        unknown = identify_scheme(events)
        assert counts(unknown) == (3, 0, 3)
        assert "vLLM's adapter paths are not on the wire" in unknown.unchecked
        assert counts(identify_scheme(events, adapter_paths={"ad": "/p"})) == (6, 0, 0)
        wrong = identify_scheme(events, adapter_paths={"ad": "/q"})
        assert counts(wrong) == (3, 1, 2)
        assert [namespace[:3] for namespace in wrong.namespaces if namespace.contradicted] == [("ad", False, None)]

    def test_a_stream_of_adapters_alone_says_what_is_missing(self) -> None:
        report = identify_scheme(self.adapter())
        assert (report.scheme, report.reason) == (
            None,
            "every store is under an adapter whose path or key is not on the wire",
        )

    def test_numbers_of_early_adapters_are_bare(self) -> None:
        events = stores("vllm-sha256-cbor", 1, lora_id=7, key_form="bare", fields={"lora_id": 7})
        report = identify_scheme(events)
        assert (report.scheme, report.key_form, counts(report)) == ("vllm-sha256-cbor", "bare", (3, 0, 0))
        assert report.settings["vLLM"] == "before 0.31"

    def test_a_salt_is_never_in_a_report(self) -> None:
        fields = {"extra_keys": [["secret"]]}
        events = stores("vllm-sha256", 1, blocks=2, cache_salt="secret", fields=fields)
        assert isinstance(events[1], BlockStored)
        events[1].extra_keys = None
        report = identify_scheme(events)
        assert [(namespace.is_salted, namespace.confirmed) for namespace in report.namespaces] == [(True, 2)]
        assert "secret" not in repr(report)

    def test_images_and_embeddings_are_read_off_the_wire(self) -> None:
        keys: list[Any] = [[["img", 1], b"\x01" * 32], [["img", -3]]]
        ids = tokens(1, 2)
        named = list(block_hashes(ids, SIZE, scheme="vllm-sha256", extra_keys=keys, cache_salt="s"))
        wire: list[Any] = [[["img", 1], "s", b"\x01" * 32], [["img", -3]]]
        report = identify_scheme([BlockStored([*named], None, ids, SIZE, medium="GPU", extra_keys=wire)])
        assert (report.key_form, counts(report)) == ("tagged", (2, 0, 0))

    def test_a_named_adapter_of_sglang_is_confirmed_by_its_key(self) -> None:
        formats: tuple[EventFormat, ...] = ("default", "dynamo")
        for format_ in formats:
            chain = HashChain.root(SIZE, extra_key="key", cache_salt="s").extend(tokens(1, 3))
            named = block_hashes(tokens(1, 3), SIZE, extra_key="key", cache_salt="s", event_format=format_, named=True)
            assert list(named) != list(chain.ids)
            store = BlockStored([*named], None, tokens(1, 3), SIZE, medium="GPU", cache_salt="s", lora_name="ad")
            report = identify_scheme([store, *stores("sglang", 2)], extra_keys=["other", "key"])
            assert (report.event_format, counts(report)) == (format_, (6, 0, 0))
            assert ("ad", True, "key", 3, 0, 0) in report.namespaces
            assert report.settings == {"--page-size": "4", "event_format": format_}
            without = identify_scheme([store, *stores("sglang", 2)])
            assert counts(without) == (3, 0, 3)

    def test_pairs_are_told(self) -> None:
        ids = tokens(1, 2)
        named = block_hashes([*ids, 9], SIZE, bigram=True)
        pairs = list(zip(ids, [*ids[1:], 9], strict=True))
        report = identify_scheme([BlockStored([*named], None, pairs, SIZE, medium="GPU")])
        assert (report.scheme, report.bigram, counts(report)) == ("sglang", True, (2, 0, 0))
        assert report.settings == {"--page-size": "4", "speculative decoding": "EAGLE"}
