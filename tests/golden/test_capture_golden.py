"""The recorded streams, read through `CaptureReader` as they are, and under pseudonyms."""

import lzma
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from goldens import ARCHIVES, capture, capture_names, json_lines, published_frames, script_sources
from kvevents._core.capture import Pseudonyms, Rewriter
from kvevents.errors import ConfigError
from kvevents.index import PrefixIndex
from kvevents.transport import CaptureReader, CaptureWriter
from kvevents.transport.capture import CapturedBatch

NAMES = Pseudonyms(bytes(range(32)))


@pytest.mark.parametrize("name", capture_names())
def test_frames_of_vllm_are_read_as_they_are(name: str) -> None:
    reader = CaptureReader(ARCHIVES / "vllm.tar.xz" / name)
    records = list(reader)
    live = [record for record in records if isinstance(record, CapturedBatch) and not record.replayed]
    assert [[batch.topic, batch.payload] for batch in live] == [
        [frames[0], frames[2]] for frames in published_frames(name)
    ]
    assert [batch.sequence for batch in live] == [int.from_bytes(frames[1], "big") for frames in published_frames(name)]
    times = [line["t"] for line in capture(name) if line.get("dir") == "pub"]
    assert [batch.time for batch in live] == times
    assert reader.damage == []


@pytest.mark.parametrize("name", [name for name in capture_names() if not name.startswith("negative")])
def test_each_batch_of_vllm_is_there_once(name: str) -> None:
    batches = Counter(
        (batch.source.dp_rank, batch.sequence) for batch in CaptureReader(ARCHIVES / "vllm.tar.xz" / name).batches()
    )
    assert set(batches.values()) == {1}


@pytest.mark.parametrize("name", capture_names())
def test_an_index_of_a_vllm_stream_holds_the_same_under_pseudonyms(name: str) -> None:
    """Integers signed and unsigned, digests as bytes, arrays and maps, salts, adapters, offloading: all versions."""
    originals, renamed, rewriter = PrefixIndex(16), PrefixIndex(16), Rewriter(NAMES)
    for batch in CaptureReader(ARCHIVES / "vllm.tar.xz" / name).batches():
        originals.apply("w", batch.payload)
        rewritten = rewriter.rewrite(batch.payload)
        report = renamed.apply("w", rewritten.payload)
        assert (rewritten.emptied_events, rewritten.dropped_fields, report.skipped) == (0, 0, [])
    assert renamed.holdings("w") == {
        rank: {tier: {NAMES.block(block) for block in blocks} for tier, blocks in tiers.items()}
        for rank, tiers in originals.holdings("w").items()
    }
    for line in capture(name):
        prompt = line.get("body", {}).get("prompt")
        if line.get("op") != "request" or not isinstance(prompt, list) or not prompt or isinstance(prompt[0], list):
            continue
        salt, size = line["body"].get("cache_salt"), capture(name)[0]["config"]["block_size"]
        new_salt = None if salt is None else NAMES.text(salt)
        before = originals.match(prompt, cache_salt=salt)
        after = renamed.match(NAMES.prompt(prompt, size, cache_salt=salt), cache_salt=new_salt)
        assert [(m.dp_rank, m.total, m.usable, m.tiers) for m in after] == [
            (m.dp_rank, m.total, m.usable, m.tiers) for m in before
        ]


def test_scripts_of_sglang_are_read_as_they_are() -> None:
    for name, data in list(script_sources(None).items())[::60]:
        expected = [bytes.fromhex(step["msgpack_hex"]) for step in json_lines(data)[1:] if step.get("msgpack_hex")]
        batches = list(CaptureReader(ARCHIVES / "sglang.tar.xz" / name).batches())
        assert [batch.payload for batch in batches] == expected
        assert [batch.sequence for batch in batches] == list(range(len(expected)))
        assert all(batch.source.block_size == json_lines(data)[0]["page_size"] for batch in batches)


def test_frames_of_sglang_are_read_with_what_was_replayed() -> None:
    records = list(CaptureReader(ARCHIVES / "sglang.tar.xz" / "sglang_zmq_frames.json"))
    live = [record for record in records if isinstance(record, CapturedBatch) and not record.replayed]
    replayed = [record for record in records if isinstance(record, CapturedBatch) and record.replayed]
    assert [batch.sequence for batch in live] == [0, 1, 2, 3, 4]
    assert [(batch.sequence, batch.payload) for batch in replayed] == [(b.sequence, b.payload) for b in live[2:]]
    assert {batch.topic for batch in live} == {b"kv"}


def test_a_file_and_a_packed_file_are_read_like_one_in_an_archive(tmp_path: Path) -> None:
    lines = b"\n".join(map(msgspec.json.encode, capture("sha256.jsonl")))
    (tmp_path / "sha256.jsonl").write_bytes(lines)
    (tmp_path / "packed.jsonl.xz").write_bytes(lzma.compress(lines))
    expected = list(CaptureReader(ARCHIVES / "vllm.tar.xz" / "sha256.jsonl"))
    assert list(CaptureReader(tmp_path / "sha256.jsonl")) == expected
    assert [r.payload for r in CaptureReader(tmp_path / "packed.jsonl.xz").batches()] == [
        record.payload for record in CaptureReader(tmp_path / "sha256.jsonl").batches()
    ]
    with pytest.raises(ConfigError, match="the archive has no file of that name"):
        list(CaptureReader(ARCHIVES / "vllm.tar.xz" / "nothing.jsonl"))


def test_a_recorded_stream_can_be_written_as_a_capture(tmp_path: Path) -> None:
    original = list(CaptureReader(ARCHIVES / "vllm.tar.xz" / "sha256.jsonl").batches())
    with CaptureWriter(tmp_path, raw=True) as writer:
        for batch in original:
            writer.write_batch(
                batch.source, batch.payload, sequence=batch.sequence, topic=batch.topic, arrived=batch.time
            )
    copies = list(CaptureReader(tmp_path).batches())
    assert [(b.sequence, b.payload, b.topic) for b in copies] == [(b.sequence, b.payload, b.topic) for b in original]
    assert [batch.time for batch in copies] == pytest.approx([batch.time for batch in original], abs=1e-6)
