"""Capture files: what was written is read, whatever ended the writer."""

import os
import zlib
from pathlib import Path

import msgspec
import pytest

from kvevents.errors import ConfigError, TransportError, WireError
from kvevents.events import BlockRemoved, BlockStored, KVEventBatch
from kvevents.transport import CaptureReader, CaptureWriter, Source
from kvevents.transport.capture import (
    CapturedBatch,
    CapturedRefusal,
    CapturedReset,
    CapturedState,
    CaptureSource,
)
from kvevents.transport.capture.layout import Chunk, pack_chunk, zstd
from kvevents.transport.capture.records import BatchLine, Line
from kvevents.transport.state import Reason, SourceCounters, SourceState, State
from kvevents.wire import encode_batch

SOURCE = Source(
    "http://engine:30000",
    "tcp://10.9.8.7:5557",
    replay_endpoint="tcp://10.9.8.7:5558",
    dp_rank=1,
    topic="kv",
    block_size=2,
)
STORED = BlockStored(
    [1 << 60, 2 << 60], None, [70_001, 70_002, 70_003, 70_004], 2, medium="GPU", cache_salt="tenant-salt"
)
SOURCE_LINE = b"\x92\x93\xa6source\x00\x81\xa9worker_id\xa1w"
BATCH_HEAD = b"\x98\xa5batch\x01\x00"
DEEP = b"\x91" * 5_000 + b"\xc0"


def payload(number: int) -> bytes:
    return encode_batch(KVEventBatch(float(number), [STORED, BlockRemoved([number + (3 << 60)], "GPU")], 1))


def write(folder: Path, count: int, **settings: object) -> list[CapturedBatch]:
    """A raw capture of so many batches, a chunk each; what was written."""
    with CaptureWriter(folder, raw=True, **settings) as writer:  # type: ignore[arg-type]
        for number in range(count):
            writer.write_batch(SOURCE, payload(number), sequence=number, topic=b"kv", arrived=100.0 + number)
            writer.flush()
    return [
        CapturedBatch(100.0 + number, CaptureSource.of(SOURCE), number, payload(number), b"kv")
        for number in range(count)
    ]


def only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_a_raw_capture_gives_back_what_was_written(tmp_path: Path) -> None:
    state = SourceState(State.LIVE, "nothing is missing", 1.0, SourceCounters(applied=3, gaps=2), Reason.COMPLETE)
    with CaptureWriter(tmp_path, raw=True) as writer:
        writer.write_state(SOURCE, state)
        writer.write_batch(SOURCE, memoryview(payload(0)), sequence=0, topic=b"kv", replayed=True, arrived=7.5)
        writer.write_reset(SOURCE)
        with pytest.raises(WireError):
            writer.write_batch(SOURCE, b"\xc1", sequence=1)
        stats = writer.stats()
    reader = CaptureReader(only_file(tmp_path))
    told, batch, reset, broken = reader
    source = CaptureSource("http://engine:30000", 1, "kv", 2, has_replay=True)
    assert isinstance(told, CapturedState)
    assert told.source == source
    assert (told.state, told.code, told.detail) == ("live", "complete", "nothing is missing")
    assert told.counters == {"applied": 3, "gaps": 2}
    assert batch == CapturedBatch(7.5, source, 0, payload(0), b"kv", replayed=True)
    assert isinstance(reset, CapturedReset)
    assert isinstance(broken, CapturedBatch)
    assert broken.payload == b"\xc1"
    assert (reader.damage, reader.ended) == ([], True)
    assert (stats.batches, stats.events, stats.blocks, stats.refused) == (1, 2, 3, 1)


def test_a_batch_that_cannot_be_read_leaves_only_word_of_it(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path) as writer, pytest.raises(WireError):
        writer.write_batch(SOURCE, b"\x93secret", sequence=4, arrived=5.0)
    (record,) = CaptureReader(tmp_path)
    assert record == CapturedRefusal(
        5.0,
        CaptureSource.of(SOURCE),
        4,
        7,
        "the batch cannot be read",
        record.offset,  # type: ignore[union-attr]
    )


def test_states_of_a_pseudonymous_capture_have_no_words(tmp_path: Path) -> None:
    state = SourceState(State.DEGRADED, "batch 3 is broken: 'salt'", 1.0, SourceCounters(), Reason.BATCH_REFUSED)
    with CaptureWriter(tmp_path) as writer:
        writer.write_state(SOURCE, state)
    (record,) = CaptureReader(tmp_path)
    assert isinstance(record, CapturedState)
    assert (record.state, record.code, record.detail) == ("degraded", "batch-refused", "")


def test_no_secret_and_no_address_is_in_a_file(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path) as writer:
        for number in range(20):
            writer.write_batch(SOURCE, payload(number), sequence=number)
    data = only_file(tmp_path).read_bytes()
    unpacked = data + b"".join(
        zstd.decompress(part[part.index(b"\x28\xb5\x2f\xfd") :]) for part in data.split(b"\x51\x2a\x4d\x18")[1:]
    )
    assert b"BlockStored" in unpacked
    for secret in (b"tenant-salt", b"10.9.8.7", (1 << 60).to_bytes(8, "big"), (70_001).to_bytes(4, "big")):
        assert secret not in unpacked
    assert only_file(tmp_path).stat().st_mode & 0o777 == 0o600


def test_a_file_can_be_unpacked_by_zstd_alone(tmp_path: Path) -> None:
    """It is a sequence of zstd frames and frames to be skipped: `zstd -dc` prints the records, array after array."""
    expected = write(tmp_path, 3)
    data, unpacked = only_file(tmp_path).read_bytes(), b""
    while data:
        magic, size = int.from_bytes(data[:4], "little"), int.from_bytes(data[4:8], "little")
        if magic & 0xFFFFFFF0 == 0x184D2A50:
            data = data[8 + size :]
            continue
        frame = zstd.ZstdDecompressor()
        unpacked += frame.decompress(data)
        assert frame.eof
        data = frame.unused_data
    assert unpacked.count(b"\xa5batch") == len(expected)


def test_a_file_cut_anywhere_is_read_up_to_its_last_whole_chunk(tmp_path: Path) -> None:
    expected = write(tmp_path / "whole", 2)
    data = only_file(tmp_path / "whole").read_bytes()
    starts = [place for place in range(len(data)) if data.startswith(b"\x51\x2a\x4d\x18\x20\0\0\0", place)]
    assert len(starts) == 3, "two batches, and the end"
    cut = tmp_path / "cut.kvcap"
    for length in [starts[0], starts[0] + 1, *range(starts[1], len(data))]:
        cut.write_bytes(data[:length])
        reader = CaptureReader(cut)
        whole = sum(start <= length for start in starts[1:])
        assert list(reader) == expected[:whole]
        assert not reader.ended
        if length in starts:
            assert reader.damage == []
        else:
            (damage,) = reader.damage
            assert (damage.offset, damage.size_bytes) == (starts[whole], length - starts[whole])
    cut.write_bytes(data)
    assert list(CaptureReader(cut)) == expected


@pytest.mark.parametrize("length", [0, 3, 8, 40])
def test_a_file_that_ends_in_its_head_holds_nothing(tmp_path: Path, length: int) -> None:
    write(tmp_path, 1)
    cut = tmp_path / "cut.kvcap"
    cut.write_bytes(only_file(tmp_path).read_bytes()[:length])
    reader = CaptureReader(cut)
    assert list(reader) == []
    assert [damage.offset for damage in reader.damage] == [0]


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, 1)
    data = only_file(tmp_path).read_bytes()
    flipped = tmp_path / "flipped.kvcap"
    for place in range(data.index(b"\x51\x2a\x4d\x18"), data.rindex(b"\x51\x2a\x4d\x18")):
        flipped.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        reader = CaptureReader(flipped)
        assert list(reader) == []
        assert len(reader.damage) == 1


def test_a_chunk_that_claims_to_be_huge_is_damage_and_takes_no_memory(tmp_path: Path) -> None:
    write(tmp_path, 1)
    data = bytearray(only_file(tmp_path).read_bytes())
    place = data.index(b"\x51\x2a\x4d\x18") + 8
    data[place + 4 : place + 12] = b"\xff" * 8
    only_file(tmp_path).write_bytes(data)
    reader = CaptureReader(tmp_path)
    assert list(reader) == []
    assert "at most" in reader.damage[0].reason


def test_a_frame_that_unpacks_to_more_than_it_says_is_damage(tmp_path: Path) -> None:
    write(tmp_path, 1)
    data = only_file(tmp_path).read_bytes()
    start = data.index(b"\x51\x2a\x4d\x18")
    packed = zstd.compress(bytes(1 << 20))
    facts = b"".join(n.to_bytes(4, "little") for n in (len(packed), 100, 1)) + bytes(16)
    crc = zlib.crc32(packed, zlib.crc32(facts)).to_bytes(4, "little")
    only_file(tmp_path).write_bytes(data[: start + 8] + crc + facts + packed)
    reader = CaptureReader(tmp_path)
    assert list(reader) == []
    assert "100 bytes of records" in reader.damage[0].reason


def test_files_are_rotated_by_size_and_read_as_one(tmp_path: Path) -> None:
    expected = write(tmp_path, 10, rotate_bytes=500)
    files = sorted(tmp_path.iterdir())
    assert len(files) > 2
    reader = CaptureReader(tmp_path)
    assert list(reader) == expected
    assert reader.ended
    assert [head.part for head in reader.heads] == list(range(len(files)))
    assert len({head.capture for head in reader.heads}) == 1
    middle = CaptureReader(files[1])
    assert list(middle) == [record for record in expected if record in list(middle)]
    assert not middle.ended, "it goes on in the next one"


def test_files_are_rotated_by_age(tmp_path: Path) -> None:
    expected = write(tmp_path, 3, rotate_s=1e-9)
    assert len(list(tmp_path.iterdir())) >= 3
    assert list(CaptureReader(tmp_path)) == expected


def test_parts_share_their_pseudonyms_and_captures_do_not(tmp_path: Path) -> None:
    for name in ("one", "other"):
        with CaptureWriter(tmp_path / name, rotate_bytes=1) as writer:
            for number in range(2):
                writer.write_batch(SOURCE, payload(0), sequence=number)
                writer.flush()
    one, other = ({batch.payload for batch in CaptureReader(tmp_path / name).batches()} for name in ("one", "other"))
    assert (len(one), len(other)) == (1, 1)
    assert one != other


def test_a_key_of_ones_own_makes_captures_comparable(tmp_path: Path) -> None:
    for name in ("one", "other"):
        with CaptureWriter(tmp_path / name, key=bytes(32)) as writer:
            writer.write_batch(SOURCE, payload(0), sequence=0)
    one, other = (next(CaptureReader(tmp_path / name).batches()).payload for name in ("one", "other"))
    assert one == other
    with pytest.raises(ConfigError, match="expected 32 random bytes, got 5"):
        CaptureWriter(tmp_path, key=b"short")


def test_a_folder_that_cannot_be_written_and_a_disk_that_is_full_are_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TransportError, match="cannot write a capture to"):
        CaptureWriter(tmp_path / "file")
    writer = CaptureWriter(tmp_path / "captures")
    with open("/dev/full", "wb", buffering=0) as full:
        os.dup2(full.fileno(), writer._file)
    writer.write_batch(SOURCE, payload(0), sequence=0)
    with pytest.raises(TransportError, match="No space left"):
        writer.flush()
    assert writer.failure is not None
    with pytest.raises(TransportError, match="No space left"):
        writer.write_batch(SOURCE, payload(1), sequence=1)
    writer.close()


def test_a_closed_writer_writes_no_more(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(TransportError, match="is closed"):
        writer.write_batch(SOURCE, payload(0), sequence=0)


def test_a_later_version_is_refused_with_its_writer(tmp_path: Path) -> None:
    write(tmp_path, 1)
    file = only_file(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"version":1', b'"version":9'))
    with pytest.raises(
        ConfigError, match=r"version 1 to 1, got kvevents-capture of version 9; it was written by kvevents"
    ):
        list(CaptureReader(file))


@pytest.mark.parametrize(
    ("name", "content", "message"), [("x", b"\x00\x01", "expected a capture"), ("y", None, "no such file")]
)
def test_what_is_no_capture_is_said(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        list(CaptureReader(path))


def test_a_folder_without_captures_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found none"):
        CaptureReader(tmp_path)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (SOURCE_LINE + BATCH_HEAD + b"\x00\xc4\x01p\xc0\xc2" + DEEP, "recursion"),
        (SOURCE_LINE + BATCH_HEAD + b"\xff\xc4\x01p\xc0\xc2\xc0", ">= 0"),
        (SOURCE_LINE + BATCH_HEAD + b"\xcf" + b"\xff" * 8 + b"\xc4\x01p\xc0\xc2\xc0", "<= 9223372036854775807"),
        (b"\x92\x93\xa6source\x00\x82\xa9worker_id\xa1w\xa7dp_rank\xff\x01", ">= 0"),
        (b"\x92\x93\xa6source\x00\x82\xa9worker_id\xa1w\xaablock_size\x00\x01", ">= 1"),
    ],
    ids=["deep", "negative number", "number beyond", "negative rank", "no tokens in a block"],
)
def test_forged_records_are_damage(tmp_path: Path, records: bytes, reason: str) -> None:
    write(tmp_path, 1)
    head = only_file(tmp_path).read_bytes().partition(b"\x51\x2a\x4d\x18")[0]
    only_file(tmp_path).write_bytes(head + pack_chunk(Chunk(records, 2, 0, 0), 1))
    reader = CaptureReader(tmp_path)
    assert list(reader) == []
    assert reason in reader.damage[0].reason


def test_a_forged_head_is_damage(tmp_path: Path) -> None:
    body = b'{"later": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    (tmp_path / "a.kvcap").write_bytes(b"\x50\x2a\x4d\x18" + len(body).to_bytes(4, "little") + body)
    reader = CaptureReader(tmp_path)
    assert list(reader) == []
    assert "head in JSON" in reader.damage[0].reason


def test_later_versions_may_add_to_records(tmp_path: Path) -> None:
    """Records are arrays whose end may grow."""
    longer = msgspec.msgpack.encode([["batch", 1, 0, 2, b"p", None, False, "more"]])
    assert msgspec.msgpack.decode(longer, type=list[Line]) == [BatchLine(1, 0, 2, b"p")]
