"""Snapshots on the wire, without sockets: taken, cut, asked for, put together."""

import itertools
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents.errors import ConfigError, WireError
from kvevents.transport.frames import END_SEQUENCE
from kvevents.transport.snapshot import (
    SNAPSHOT_MARK,
    Snapshot,
    SnapshotHead,
    SnapshotProvider,
    chunk_request,
    digest_of,
    is_snapshot_answer,
    pack_parts,
    read_snapshot_request,
    unpack_parts,
)
from kvevents.transport.snapshot_client import SnapshotDownload
from kvevents.transport.snapshot_server import SnapshotServer
from zmq_peers import until

MEBIBYTE = 1 << 20


def server(provider: SnapshotProvider, **options: float) -> SnapshotServer:
    return SnapshotServer(provider, payload_of=lambda sequence: b"batch %d" % sequence, **options)  # type: ignore[arg-type]


def download(offered: SnapshotServer, max_bytes: int = 64 * MEBIBYTE) -> SnapshotDownload:
    coming = SnapshotDownload(max_bytes)
    until(lambda: step(offered, coming) != "preparing")
    while not coming.is_complete:
        step(offered, coming)
    return coming


def step(offered: SnapshotServer, coming: SnapshotDownload) -> str:
    answer = offered.answer(coming.request())
    assert answer is not None
    return coming.take(*answer).status


def ready(**fields: object) -> bytes:
    values = {"id": 7, "size": 4, "chunks": 2} | fields
    return msgspec.msgpack.encode(SnapshotHead(status="ready", **values))  # type: ignore[arg-type]


def test_for_a_plain_publisher_the_question_is_a_replay_from_beyond_all_it_has() -> None:
    for frame in (SNAPSHOT_MARK, chunk_request(2**64 - 1, 2**32 - 1)):
        assert int.from_bytes(frame, "big") >= 0x7F << 56
    assert int.from_bytes(SNAPSHOT_MARK, "big", signed=True) > 0
    assert len(SNAPSHOT_MARK) == len(END_SEQUENCE)
    assert SNAPSHOT_MARK != END_SEQUENCE


def test_what_is_asked_for_is_read_back() -> None:
    assert read_snapshot_request(SNAPSHOT_MARK) == "open"
    assert read_snapshot_request(chunk_request(2**64 - 1, 3)) == (2**64 - 1, 3)
    assert read_snapshot_request((57).to_bytes(8, "big")) is None
    assert read_snapshot_request(SNAPSHOT_MARK + b"more") is None
    assert is_snapshot_answer([b"", SNAPSHOT_MARK, b"head", b""])
    assert not is_snapshot_answer([b"", b"topic", b"\0" * 8, b"payload"])


@given(st.lists(st.binary(max_size=40)))
def test_parts_survive_the_way(parts: list[bytes]) -> None:
    assert [bytes(part) for part in unpack_parts(b"".join(pack_parts(parts)))] == parts


@pytest.mark.parametrize("data", [b"\0" * 7, b"\0" * 7 + b"\5four"])
def test_parts_that_do_not_add_up_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="expected a part of"):
        unpack_parts(data)


@pytest.mark.parametrize("parts", [[], [b""], [b"one", b"", b"three"], [b"x" * (3 * MEBIBYTE), b"y" * 5]])
def test_a_snapshot_arrives_whole(parts: list[bytes]) -> None:
    with server(lambda: Snapshot(12, iter(parts))) as offered:
        coming = download(offered)
        assert [bytes(part) for part in coming.parts()] == parts
        assert coming.head is not None
        assert (coming.head.sequence, coming.head.digest) == (12, digest_of(b"batch 12"))
        stats = offered.stats()
        assert (stats.taken, stats.failed, stats.served) == (1, 0, coming.head.chunks)


def test_many_who_come_at_once_cost_one_snapshot() -> None:
    numbers = itertools.count()
    with server(lambda: (next(numbers), [b"part"]), fresh_s=60.0) as offered:
        heads = [download(offered).head for _ in range(20)]
        assert len({head.id for head in heads if head}) == 1
        assert offered.stats().taken == 1


def test_who_is_in_the_middle_goes_on_and_who_is_too_late_begins_anew() -> None:
    numbers = itertools.count()
    with server(lambda: (next(numbers), [b"x" * (2 * MEBIBYTE)]), fresh_s=1e-9) as offered:
        slow = SnapshotDownload(64 * MEBIBYTE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(offered, "_fresh_s", 60.0)
            until(lambda: step(offered, slow) == "ready")

        def take_another() -> None:
            taken = offered.stats().taken
            assert offered.answer(SNAPSHOT_MARK)
            until(lambda: offered.stats().taken > taken)

        take_another()
        assert step(offered, slow) == "ready", "the one before the newest is still there"
        take_another()
        assert step(offered, slow) == "gone"
        assert slow.request() == SNAPSHOT_MARK
        assert offered.stats().held_bytes < 5 * MEBIBYTE


def test_one_that_nobody_asks_for_any_more_is_let_go() -> None:
    with server(lambda: (1, [b"x" * MEBIBYTE]), fresh_s=60.0, keep_s=0.02) as offered:
        download(offered)
        until(lambda: offered.stats().held_bytes == 0)
        assert download(offered).is_complete
        assert offered.stats().taken == 2


def test_a_snapshot_that_cannot_be_had_is_explained() -> None:
    def fail() -> None:
        raise RuntimeError("no memory")

    for provider, reason in ((fail, "RuntimeError: no memory"), (lambda: None, "none can be taken now")):
        with server(provider) as offered:
            coming = SnapshotDownload(MEBIBYTE)
            until(lambda: step(offered, coming) == "unavailable")  # noqa: B023 - called at once
            answer = offered.answer(SNAPSHOT_MARK)
            assert answer is not None
            assert coming.take(*answer).reason == reason
            assert offered.stats().failed == 1


def test_one_that_is_too_large_is_not_offered_and_not_taken() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 1000

    with server(lambda: (1, endless()), max_bytes=10_000) as offered:
        coming = SnapshotDownload(MEBIBYTE)
        until(lambda: step(offered, coming) == "unavailable")
    with pytest.raises(WireError, match="at most 10 bytes"):
        SnapshotDownload(10).take(ready(size=11), b"")


@pytest.mark.parametrize(
    ("head", "chunk", "message"),
    [
        (ready(chunk=1), b"", "expected chunk 0"),
        (ready(), b"12345", "expected a snapshot of 4 bytes, got 5"),
        (ready(chunks=1), b"123", "expected a snapshot of 4 bytes, got 3"),
        (b"\xc1", b"", "expected the head"),
        (msgspec.msgpack.encode({"status": "sold out"}), b"", "expected the head"),
        (b"\x81\xa1x" + b"\x91" * 4_000 + b"\xc0", b"", "expected the head"),
        (b"\x90" * 5_000, b"", "at most 4096 bytes"),
    ],
)
def test_what_does_not_fit_is_refused(head: bytes, chunk: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        SnapshotDownload(MEBIBYTE).take(head, chunk)


def test_chunks_of_another_snapshot_are_refused() -> None:
    coming = SnapshotDownload(MEBIBYTE)
    coming.take(ready(), b"12")
    with pytest.raises(WireError, match="expected chunk 1 of the 2 of snapshot 0x7"):
        coming.take(ready(id=8, chunk=1), b"34")


def test_what_a_later_version_adds_to_a_head_is_passed_over() -> None:
    head = msgspec.msgpack.encode({"status": "ready", "id": 1, "size": 0, "chunks": 1, "colour": "blue"})
    coming = SnapshotDownload(MEBIBYTE)
    coming.take(head, b"")
    assert coming.is_complete
    assert coming.parts() == []


def test_a_provider_is_something_to_call() -> None:
    with pytest.raises(ConfigError, match="expected a callable"):
        SnapshotServer("yes")  # type: ignore[arg-type]
