"""Snapshots over the replay socket: how they are asked for, what is in them, how they are cut and put together.

A snapshot is what a publisher's consumer should hold after batch number `sequence`. It is asked for on the
replay ROUTER, in a form that every peer answers: 8 bytes where the start of a replay is expected.

    ask        [empty, MARK]                        a publisher without snapshots takes it for the start of a replay
                                                    far above all that it has published, and sends the end mark alone
    answer     [empty, MARK, head, chunk 0]
    ask        [empty, MARK + id + chunk number]    8 and 4 bytes, big-endian: a consumer takes chunks at its own pace
    answer     [empty, MARK, head, chunk]

SGLang and vLLM read whatever stands in the third frame (of the ROUTER's) as one unsigned number, of any length, and
nothing that they read there stops them; the mark is positive for readers of signed numbers too. A head is a msgpack
map (`SnapshotHead`); fields that are not known are passed over. The chunks of a snapshot, one after the other, are
its parts, each after its length (8 bytes, big-endian). A part is a batch of events as it travels live, with its
tokens, or an image of a source's blocks (`PrefixIndex.snapshot_worker`), which has no tokens and serves kvevents only.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from kvevents.errors import WireError

SNAPSHOT_MARK = b"\x7fKVSNAP\x01"
"""Asks for a snapshot where a replay's start is expected; the last byte is the version."""

MAX_HEAD_BYTES = 4_096
_ID_BYTES, _CHUNK_NUMBER_BYTES, _LENGTH_BYTES = 8, 4, 8
_DIGEST_BYTES = 16


class Snapshot(NamedTuple):
    """What a consumer should hold at one moment.

    Attributes:
        sequence: the number of the last batch whose effect is in it; None: no batch was published so far.
        parts: batches and images (see above), to be applied in this order by a consumer that holds nothing.
    """

    sequence: int | None
    parts: Iterable[bytes]


SnapshotProvider: TypeAlias = Callable[[], Snapshot | tuple[int | None, Iterable[bytes]] | None]
"""Takes a snapshot; None: there is none to be had now. Called by a thread of the server's own, one call at a time; what
it raises is told to whoever asked. Number and parts must be of one moment."""


class SnapshotHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """What goes with a chunk.

    Attributes:
        status: `ready`: a chunk follows. `preparing`: ask again soon. `gone`: the snapshot asked for has been replaced,
            begin anew. `unavailable`: there is none, `reason` says why.
        id: which snapshot.
        sequence: the number of the last batch whose effect is in it.
        digest: of that batch's bytes (`digest_of`), by which a consumer knows the publisher's life; None: not known.
        size: bytes of all chunks.
        chunks: how many there are.
        chunk: which one follows, from 0.
        reason: why not, for people.
    """

    status: Literal["ready", "preparing", "gone", "unavailable"]
    id: int = 0
    sequence: int | None = None
    digest: bytes | None = None
    size: int = 0
    chunks: int = 0
    chunk: int = 0
    reason: str = ""


def digest_of(payload: bytes) -> bytes:
    """The digest of a batch's bytes as it stands in a head: BLAKE2b of 16 bytes."""
    return hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()


def chunk_request(snapshot_id: int, chunk: int) -> bytes:
    """The frame that asks for one chunk of a snapshot."""
    return SNAPSHOT_MARK + snapshot_id.to_bytes(_ID_BYTES, "big") + chunk.to_bytes(_CHUNK_NUMBER_BYTES, "big")


def read_snapshot_request(frame: bytes) -> tuple[int, int] | Literal["open"] | None:
    """What a request asks for: `open`, or the id of a snapshot and the number of a chunk; None: something else."""
    if not frame.startswith(SNAPSHOT_MARK):
        return None
    rest = frame[len(SNAPSHOT_MARK) :]
    if not rest:
        return "open"
    if len(rest) != _ID_BYTES + _CHUNK_NUMBER_BYTES:
        return None
    return int.from_bytes(rest[:_ID_BYTES], "big"), int.from_bytes(rest[_ID_BYTES:], "big")


def is_snapshot_answer(frames: list[bytes]) -> bool:
    """Whether a message of the replay socket answers a request for a snapshot."""
    return len(frames) == 4 and frames[1] == SNAPSHOT_MARK and not frames[0]


def pack_parts(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of a snapshot, in pieces: each part after its length."""
    for part in parts:
        yield len(part).to_bytes(_LENGTH_BYTES, "big")
        yield part


def unpack_parts(data: bytes | bytearray) -> list[memoryview]:
    """The parts of a snapshot.

    Raises:
        WireError: if the lengths do not add up.
    """
    view, offset, parts = memoryview(data), 0, []
    while offset < len(view):
        length = int.from_bytes(view[offset : offset + _LENGTH_BYTES], "big")
        start = offset + _LENGTH_BYTES
        if start + length > len(view):
            raise WireError(f"expected a part of {length} bytes, got {max(0, len(view) - start)}", offset)
        parts.append(view[start : start + length])
        offset = start + length
    return parts
