"""Batches as no engine of today sends them, under pseudonyms: what is not known is not passed on."""

import itertools
from typing import Any

import msgspec
import pytest

from kvevents._core.capture import Pseudonyms, Rewriter, measure
from kvevents.events import AllBlocksCleared, BlockStored, BlockStoredWithMetadata
from kvevents.index import PrefixIndex
from kvevents.wire import decode_batch
from payloads import COMMON, pack, stored_map

NAMES = Pseudonyms(bytes(range(32)))
SECRET = "the-secret"
CLEARED = {"type": "AllBlocksCleared"}


def rewrite(batch: Any, **keep: bool) -> tuple[Any, bytes]:
    """A batch given as plain values, rewritten: as plain values and as bytes."""
    payload = Rewriter(NAMES, **keep).rewrite(pack(batch)).payload
    return msgspec.msgpack.decode(payload), payload


def only_event(event: Any) -> Any:
    batch, payload = rewrite([1.5, [event], 3])
    assert SECRET.encode() not in payload
    assert (batch[0], batch[2]) == (1.5, 3)
    return batch[1][0]


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (["Shiny", SECRET, {SECRET: 1}], ["Unknown-" + NAMES.text("Shiny")]),
        ({"type": "Shiny", "of": SECRET}, {"type": "Unknown-" + NAMES.text("Shiny")}),
        ({"of": SECRET, "type": "Shiny"}, {"type": "Unknown-" + NAMES.text("Shiny")}),
        (["BlockRemoved", SECRET], ["BlockRemoved"]),
        (stored_map(token_ids=SECRET), {"type": "BlockStored"}),
        (CLEARED | {f"{SECRET}{number}": 0 for number in range(99)}, {}),
        ([], []),
        ([SECRET], ["Unknown-" + NAMES.text(SECRET)]),
        ({SECRET: 1}, {}),
        ([7, SECRET], []),
        (SECRET, []),
    ],
)
def test_an_event_that_is_not_read_keeps_its_shape_and_stays_unusable(event: Any, left: Any) -> None:
    before = decode_batch(pack([1.5, [CLEARED, event, CLEARED], 3]), strict=False)
    rewritten = Rewriter(NAMES).rewrite(pack([1.5, [CLEARED, event, CLEARED], 3]))
    assert SECRET.encode() not in rewritten.payload
    after = decode_batch(rewritten.payload, strict=False)
    assert msgspec.msgpack.decode(rewritten.payload)[1] == [CLEARED, left, CLEARED]
    assert after.events == before.events == [AllBlocksCleared(), AllBlocksCleared()]
    assert len(after.skipped) == len(before.skipped) == rewritten.emptied_events == 1
    assert (after.skipped[0].code == "unknown-tag") == (before.skipped[0].code == "unknown-tag")
    assert (rewritten.events, rewritten.cleared) == (3, 2)


def test_unknown_fields_and_elements_are_left_out_and_counted() -> None:
    batch = [
        1.5,
        [stored_map(**{SECRET: [1], "later": SECRET}), ["BlockRemoved", [7], "GPU", None, None, None, SECRET]],
    ]
    rewritten = Rewriter(NAMES).rewrite(pack([*batch, 3, SECRET]))
    assert SECRET.encode() not in rewritten.payload
    assert rewritten.dropped_fields == 4
    stored, removed = msgspec.msgpack.decode(rewritten.payload)[1]
    assert list(stored) == list(stored_map())
    assert removed == ["BlockRemoved", [NAMES.block(7) % 2**64], "GPU", None, None, None]
    as_map = pack({"ts": 1.5, SECRET: SECRET, "events": [CLEARED], "data_parallel_rank": 4})
    assert msgspec.msgpack.decode(Rewriter(NAMES).rewrite(as_map).payload) == {
        "ts": 1.5,
        "events": [CLEARED],
        "data_parallel_rank": 4,
    }


def test_names_that_are_not_known_are_replaced_and_those_that_are_stay() -> None:
    fields = {"medium": SECRET, "locality": SECRET, "kv_cache_spec_kind": SECRET, "ownership": "GPU", "session_id": ""}
    event = only_event(stored_map(**fields))
    assert [event[name] for name in fields] == [NAMES.text(SECRET)] * 3 + [NAMES.text("GPU"), ""]
    kept = {"medium": "cpu", "locality": "REMOTE", "kv_cache_spec_kind": "sliding_window", "group_idx": 3}
    assert {name: only_event(stored_map(**kept))[name] for name in kept} == kept


def test_a_name_is_the_same_wherever_it_stands_so_that_extra_keys_are_understood() -> None:
    keys = [[SECRET, ["image", 5], "salt", b"digest-of-16-byte"], None]
    event = only_event(stored_map(lora_name=SECRET, extra_keys=keys))
    adapter, image, salt, digest = event["extra_keys"][0]
    assert adapter == event["lora_name"] == NAMES.text(SECRET)
    assert image == [NAMES.text("image"), 5]
    assert salt == NAMES.text("salt")
    assert isinstance(digest, bytes)
    assert len(digest) == len(keys[0][3])  # type: ignore[index]
    odd = [[12345678901, -5, 2.5, {SECRET: SECRET}, [SECRET, 1 << 40], [7, 8], True], None]
    values = only_event(stored_map(extra_keys=odd))["extra_keys"][0]
    assert values[6] is True
    assert not {12345678901, -5, 2.5, 7, 8, 1 << 40} & {*values[:3], values[4][1], *values[5]}


def test_the_earlier_form_keeps_its_salt_alone() -> None:
    event = only_event(["BlockStored", *COMMON, {SECRET: SECRET, "cache_salt": "salt", "more": [SECRET]}])
    assert event[7] == {"cache_salt": NAMES.text("salt")}
    (read,) = decode_batch(pack([1.5, [event], 3])).events
    assert isinstance(read, BlockStoredWithMetadata)
    assert read.metadata is not None
    assert read.metadata.cache_salt == NAMES.text("salt")
    assert only_event(["BlockStored", *COMMON, {"more": SECRET}])[7] == {}


@pytest.mark.parametrize("slots", range(4, 14))
def test_arrays_keep_their_length(slots: int) -> None:
    """5 fields of 0.9.0 and what came after: each version's arrays stay as long as they are."""
    whole = [*COMMON, "adapter", [None, None], 1, "full_attention", 4, "LOCAL", "me", "session"]
    event = ["BlockStored", *whole[:slots]]
    assert len(only_event(event)) == len(event)


def test_integers_are_signed_where_the_source_is() -> None:
    """SGLang's are, vLLM's are not; it shows with the first one below zero."""
    hashes = [*range(1, 40), -5]

    def removed(rewriter: Rewriter, blocks: list[int]) -> list[int]:
        payload = rewriter.rewrite(pack([0.0, [["BlockRemoved", blocks]], 0])).payload
        found: list[int] = msgspec.msgpack.decode(payload)[1][0][1]
        return found

    rewriter = Rewriter(NAMES)
    assert removed(rewriter, hashes) == [NAMES.block(block) for block in hashes]
    later = removed(rewriter, hashes[:39])
    assert min(later) < 0
    assert [block % 2**64 for block in later] == removed(Rewriter(NAMES), hashes[:39])


@pytest.mark.parametrize("size", [1, 2, 5])
def test_blocks_of_pairs_stay_chains_of_pairs_however_the_events_are_cut(size: int) -> None:
    """Neighbouring pairs share a token, within an event and from one to the next."""
    ids = [number % 3 for number in range(6 * size + 1)]
    originals, renamed = PrefixIndex(size), PrefixIndex(size)
    prompts = {}
    for worker, step, base in (("whole", 6, 100), ("cut", 1, 200), ("branch", 4, 300)):
        rewriter = Rewriter(NAMES)
        hashes = [base + number for number in range(6)]
        units: list[Any] = []
        told = [*ids[: 4 * size + 1], *[9] * (2 * size)] if worker == "branch" else ids
        pairs = list(itertools.pairwise(told))
        for start in range(0, 6, step):
            end = min(6, start + step)
            event = ["BlockStored", hashes[start:end], hashes[start - 1] if start else None]
            payload = pack([0.0, [[*event, pairs[start * size : end * size], size, None, "GPU"]], 0])
            originals.apply(worker, payload)
            rewritten = rewriter.rewrite(payload).payload
            assert renamed.apply(worker, rewritten).skipped == []
            (read,) = decode_batch(rewritten).events
            assert isinstance(read, BlockStored)
            units += read.token_ids
        assert all(left[1] == right[0] for left, right in itertools.pairwise(units))
        prompts[worker] = (told, [*(first for first, _ in units), units[-1][1]])
    for before, after in prompts.values():
        wanted = {match.worker: match.total for match in originals.match(before)}
        assert {match.worker: match.total for match in renamed.match(after)} == wanted
        assert wanted["whole"] == wanted["cut"] == 10 - wanted["branch"]


def test_ids_show_neither_their_width_nor_their_repetition() -> None:
    event = only_event(stored_map(token_ids=[1, 1, 1, 1], block_hashes=[7, 8], block_size=2))
    assert len(set(event["token_ids"])) == 4
    assert all(1 << 16 <= token < 1 << 31 for token in event["token_ids"])


def test_the_rest_of_a_block_and_blocks_of_impossible_sizes_are_replaced_too() -> None:
    for size in (0, 3, 1 << 40, 2**64 - 1):
        event = only_event(stored_map(token_ids=[5, 6, 7, 8, 5], block_hashes=[7], block_size=size))
        assert len(event["token_ids"]) == 5
        assert not {5, 6, 7, 8} & set(event["token_ids"])
        assert event["block_size"] == size


def test_children_in_front_of_their_parents_are_read_in_no_time() -> None:
    """A batch that is told backwards, block by block."""
    count = 20_000
    events = [stored_map(block_hashes=[n + 1], parent_block_hash=n or None, token_ids=[n, 1]) for n in range(count)]
    rewritten = Rewriter(NAMES).rewrite(pack([0.0, events[::-1], 0])).payload
    tokens = [token for event in decode_batch(rewritten).events[::-1] for token in event.token_ids]  # type: ignore[union-attr]
    assert tokens == NAMES.prompt([token for n in range(count) for token in (n, 1)], 2).tolist()


def test_what_is_forgotten_is_replaced_all_the_same() -> None:
    rewriter = Rewriter(NAMES, remembered_blocks=2)
    batches = [
        pack([0.0, [stored_map(block_hashes=[n + 1], parent_block_hash=n or None, token_ids=[n, 1])], 0])
        for n in range(9)
    ]
    first = [rewriter.rewrite(batch).payload for batch in batches]
    again = rewriter.rewrite(batches[4]).payload
    assert again != first[4]
    assert rewriter.rewrite(batches[4]).payload == again


def test_measuring_a_batch() -> None:
    assert measure(pack([0.0, [CLEARED, ["BlockRemoved", [1, 2, 3]], ["Shiny"]], 0])) == (3, 3, 1)
