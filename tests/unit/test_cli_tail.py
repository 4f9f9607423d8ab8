"""Lines and records of an event stream, and how it reaches the thread that prints."""

import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvevents import cli
from kvevents.cli import lines, records, selection, stream
from kvevents.cli.selection import Selection
from kvevents.cli.stream import Batch, Cleared, EventStream, Item, Origin, Refused, StateChange
from kvevents.cli.token_text import TokenText
from kvevents.errors import WireError
from kvevents.events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    BlockStoredMetadata,
    BlockStoredWithMetadata,
    KVCacheEvent,
    KVEventBatch,
    SkippedEvent,
)
from kvevents.index import PrefixIndex
from kvevents.wire import encode_batch
from model_files import byte_tokenizer, write_model

ORIGIN = Origin(received=0.25, worker="w1", dp_rank=3, seq=12)


def batch(*events: KVCacheEvent, skipped: tuple[SkippedEvent, ...] = ()) -> Batch:
    return Batch(ORIGIN, KVEventBatch(7.5, list(events), 3, skipped=list(skipped)))


def line(item: Item) -> str:
    """The one line of an item, without the time of day."""
    (text,) = [*lines.event_lines(item), *lines.other_lines(item)]
    return text.partition(" ")[2]


def record(item: Item) -> dict[str, Any]:
    (value,) = [*records.event_records(item), *records.other_records(item)]
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(value))
    return decoded


STORED = BlockStored(list(range(16, 16 + 24)), -1, list(range(24 * 64)), 64, medium="GPU")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (STORED, "stored GPU 24 blocks 00000000..00000000, parent ffffffff, 1536 tokens [0, 1, 2, 3, 4, 5, ...]"),
        (BlockStored([1 << 60], None, [9, 8], 2), "stored GPU 1 block 10000000, no parent, 2 tokens [9, 8]"),
        (
            BlockStored([b"\x01" * 24 + b"\xab" * 8], None, [(1, 2), (2, 3)], 2, medium="DISK", group_idx=1, lora_id=4),
            "stored DISK group 1 1 block abababab, no parent, 2 tokens [(1, 2), (2, 3)], adapter 4",
        ),
        (
            BlockStored([], 1 << 60, [], 64, lora_name="x", lora_id=4, session_id="s"),
            "stored GPU 0 blocks, parent 10000000, 0 tokens [], adapter x, session s",
        ),
        (BlockRemoved([1 << 60, 2 << 60], medium="CPU_PINNED"), "removed CPU_PINNED 2 blocks 10000000..20000000"),
        (BlockRemoved([1 << 60], group_idx=0), "removed GPU group 0 1 block 10000000"),
        (AllBlocksCleared(), "cleared"),
    ],
)
def test_an_event_is_one_line(event: KVCacheEvent, text: str) -> None:
    assert line(batch(event)) == f"w1/3 #12 {text}"


def test_a_line_begins_with_the_local_time() -> None:
    (text,) = lines.event_lines(batch(AllBlocksCleared()))
    assert text[2::3][:2] == "::"
    assert text[8:13] == ".250 "


def test_a_source_without_rank_and_sequence_is_only_its_name() -> None:
    assert line(Batch(Origin(0.0, "w", None), KVEventBatch(0.0, [AllBlocksCleared()]))) == "w cleared"


OTHERS = [
    (StateChange(ORIGIN, "live", "complete"), "w1/3 #12 is live: complete", {"state": "live", "reason": "complete"}),
    (StateChange(ORIGIN, "live", ""), "w1/3 #12 is live", {"state": "live", "reason": ""}),
    (Cleared(ORIGIN), "w1/3 #12 starts anew: what was announced before no longer holds", {"cleared": True}),
    (
        Refused(ORIGIN, WireError("expected an array, got nil", 4), 99),
        "w1/3 #12 refused a batch of 99 bytes: expected an array, got nil (at byte 4)",
        {"refused": {"reason": "expected an array, got nil", "offset": 4, "size_bytes": 99}},
    ),
    (
        batch(skipped=(SkippedEvent("unknown-tag", 5, "got BlockMoved"),)),
        "w1/3 #12 skipped an event, unknown-tag at byte 5: got BlockMoved",
        {"ts": 7.5, "skipped": {"code": "unknown-tag", "offset": 5, "reason": "got BlockMoved"}},
    ),
]


@pytest.mark.parametrize(("item", "text", "fields"), OTHERS)
def test_what_is_no_event_has_its_line_too(item: Item, text: str, fields: dict[str, Any]) -> None:
    assert line(item) == text
    assert record(item) == {"received": 0.25, "worker": "w1", "dp_rank": 3, "seq": 12} | fields
    assert not [*lines.event_lines(item), *records.event_records(item)]


def test_a_record_has_every_field_of_the_event() -> None:
    assert record(batch(STORED)) == {
        "received": 0.25,
        "worker": "w1",
        "dp_rank": 3,
        "seq": 12,
        "ts": 7.5,
        "event": {
            "type": "BlockStored",
            "block_hashes": list(range(16, 40)),
            "parent_block_hash": -1,
            "token_ids": list(range(1536)),
            "block_size": 64,
            "medium": "GPU",
        },
    }


def test_digests_are_hex_in_records() -> None:
    mixed: list[BlockHash] = [b"\x01\xff", 5]
    event = record(batch(BlockStored(mixed, b"\x02", [1, 2], 1)))["event"]
    assert (event["block_hashes"], event["parent_block_hash"]) == (["01ff", 5], "02")
    assert record(batch(BlockRemoved([b"\xaa"])))["event"] == {"type": "BlockRemoved", "block_hashes": ["aa"]}


SALTED = [
    BlockStored([1], None, [7], 1, cache_salt="tenant-secret"),
    BlockStoredWithMetadata([1], None, [7], 1, metadata=BlockStoredMetadata("tenant-secret")),
]


@pytest.mark.parametrize("event", SALTED)
def test_a_salt_is_shown_only_as_a_pseudonym(event: BlockStored) -> None:
    name = lines.pseudonym("tenant-secret")
    assert name != lines.pseudonym("another")
    assert line(batch(event)).endswith(f", salt {name}")
    shown = json.dumps(record(batch(event)))
    assert name in shown
    assert "tenant-secret" not in shown


def test_extra_keys_hide_what_they_hold() -> None:
    event = BlockStored([1, 2], None, [7, 8], 1, extra_keys=[["tenant-secret", ["image", 4], b"\x01"], None])
    keys = record(batch(event))["event"]["extra_keys"]
    assert keys == [[lines.pseudonym("tenant-secret"), [lines.pseudonym("image"), 4], lines.pseudonym("01")], None]


MEDIA = ["GPU", "gpu", "CPU", "cpu", "CPU_PINNED", "DISK", "FS", "STORAGE", "OBJ", "EXTERNAL", None, "MOON"]


@pytest.mark.parametrize("medium", MEDIA)
@pytest.mark.parametrize("locality", [None, "LOCAL", "REMOTE"])
def test_a_mediums_tier_is_that_of_the_index(medium: str | None, locality: str | None) -> None:
    index = PrefixIndex(1)
    root = BlockStored([1], None, [7], 1, medium="GPU")  # which the others have to hang below
    index.apply("w", encode_batch(KVEventBatch(0.0, [root], 0)))
    event = BlockStored([2], 1, [8], 1, medium=medium, locality=locality)
    index.apply("w", encode_batch(KVEventBatch(0.0, [event], 0), dialect="vllm"))
    held = [tier for tier, blocks in index.holdings("w")[0].items() if 2 in blocks]
    tier = selection.tier_of(medium, locality)
    assert held == ([] if tier is None else [tier])


FILTERED = batch(
    STORED,
    BlockRemoved([1 << 60], medium="CPU"),
    AllBlocksCleared(),
    skipped=(SkippedEvent("unknown-tag", 5, "got BlockMoved"),),
)


@pytest.mark.parametrize(
    ("choice", "events", "others"),
    [
        (Selection(), 3, 1),
        (Selection(kinds=["stored"]), 1, 0),
        (Selection(kinds=["removed", "cleared"]), 2, 0),
        (Selection(kinds=["state"]), 0, 1),
        (Selection(tiers=["CPU_PINNED"]), 2, 1),
        (Selection(tiers=["CPU_PINNED"], kinds=["stored", "removed"]), 1, 0),
        (Selection(workers=["w1"], ranks=[2, 3]), 3, 1),
        (Selection(workers=["w2"]), 0, 0),
        (Selection(ranks=[0]), 0, 0),
    ],
)
def test_a_selection_shows_what_was_chosen(choice: Selection, events: int, others: int) -> None:
    item = choice.of(FILTERED)
    shown = [] if item is None else [*lines.event_lines(item)]
    assert len(shown) == events
    assert len([] if item is None else [*lines.other_lines(item)]) == others
    assert len(FILTERED.batch.events) == 3


def test_states_are_chosen_by_worker_rank_and_kind() -> None:
    change = StateChange(ORIGIN, "live", "complete")
    assert Selection(kinds=["state"], workers=["w1"], ranks=[3], tiers=["DISK"]).of(change) is change
    assert Selection(kinds=["stored"]).of(change) is None


def test_tokens_are_shown_as_text(tmp_path: Path) -> None:
    prompt = "Ünïts of a prompt, and more than fits on a line of this width, so cut"
    event = BlockStored([1], None, [*prompt.encode(), 300], 1, medium="GPU")
    for text in (TokenText(Path("bytes")), TokenText(write_model(tmp_path, byte_tokenizer(), None))):
        (shown,) = lines.event_lines(batch(event), text)
        assert shown.endswith(f' tokens "{prompt[:60]}"...')
        (value,) = records.event_records(batch(event), text)
        assert value["text"] == prompt + "\N{REPLACEMENT CHARACTER}"
        assert text.of([(72, 105), (105, 33)]) == "Hi"


def test_a_tokenizer_that_is_none_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tail", "http://127.0.0.1:9", "--tokenizer", str(tmp_path)]) == cli.USAGE
    assert "expected a directory with a tokenizer.json" in capsys.readouterr().err
    (tmp_path / "tokenizer.json").write_text("{}")
    assert cli.main(["tail", "http://127.0.0.1:9", "--tokenizer", str(tmp_path)]) == cli.USAGE
    assert "expected a tokenizer" in capsys.readouterr().err


def test_a_missing_extra_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr("kvevents.server.prompts.settings.find_spec", lambda _name: None)
    assert cli.main(["tail", "http://127.0.0.1:9", "--tokenizer", str(tmp_path)]) == cli.USAGE
    assert "pip install 'kvevents[tokenizers]'" in capsys.readouterr().err


def test_a_worker_that_is_not_followed_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tail", "a=tcp://127.0.0.1:5", "b=tcp://127.0.0.1:6", "--worker", "c"]
    assert cli.main(words) == cli.USAGE
    assert "expected one of a, b, got c" in capsys.readouterr().err


def test_the_stream_keeps_order_and_takes_the_batchs_own_rank() -> None:
    events = EventStream()
    taken = events.apply("w", encode_batch(KVEventBatch(1.0, [AllBlocksCleared()], 5)), seq=3, dp_rank=0)
    events.clear_worker("w", 1)
    first, second = events.next(), events.next()
    assert isinstance(first, Batch)
    assert (first.origin.dp_rank, first.origin.seq, first.batch.events) == (5, 3, [AllBlocksCleared()])
    assert taken == first.batch
    assert isinstance(second, Cleared)
    assert second.origin.dp_rank == 1


def test_a_refused_batch_is_shown_and_still_refused() -> None:
    events = EventStream()
    with pytest.raises(WireError):
        events.apply("w", b"\xc1", seq=3, dp_rank=None)
    item = events.next()
    assert isinstance(item, Refused)
    assert item.size_bytes == 1


def test_a_full_stream_holds_the_receiver_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "QUEUE_BATCHES", 2)
    monkeypatch.setattr(stream, "WAIT_S", 0.01)
    events = EventStream()

    def receive() -> None:
        for rank in range(5):
            events.clear_worker("w", rank)

    receiver = threading.Thread(target=receive)
    receiver.start()
    assert isinstance(events.next(), Cleared)
    receiver.join(0.05)
    assert receiver.is_alive()
    events.close()
    receiver.join(5)
    assert not receiver.is_alive()


@pytest.mark.parametrize("words", [["--replay", "tcp://127.0.0.1:1"], ["--topic", "x"], ["--bind"]])
def test_socket_options_beside_a_url_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tail", "http://127.0.0.1:1", *words]) == cli.USAGE
    assert "leave them out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [[], ["tcp://nonsense"], ["udp://127.0.0.1:5"], ["tcp://127.0.0.1:5", "--limit", "0"]]
)
def test_wrong_arguments_are_usage_errors(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tail", *words]) == cli.USAGE
    assert capsys.readouterr().err.startswith("kvevents: ")


def test_a_worker_that_does_not_answer_is_the_other_side_failing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tail", "http://127.0.0.1:9"]) == cli.OTHER_SIDE_FAILED
    assert "127.0.0.1:9" in capsys.readouterr().err
