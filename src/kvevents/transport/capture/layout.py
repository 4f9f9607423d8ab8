"""A capture file from the outside: a head and chunks, each behind a frame that `zstd` passes over.

    file   = head chunk*
    head   = skippable frame 0 { JSON }
    chunk  = skippable frame 1 { crc32, packed bytes, unpacked bytes, records, first time, last time } zstd frame

So a file is a sequence of frames of the zstd format: `zstd -dc FILE` gives the records of all chunks. A chunk says how
long it is before it begins, so that one that was cut off, or half written, is recognised before anything is unpacked.
`docs/capture.md` describes the format for readers in other languages.
"""

import struct
import sys
import zlib
from typing import IO, Annotated, NamedTuple

import msgspec

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = [
    "FORMAT",
    "MAGIC",
    "SUFFIX",
    "VERSION",
    "Chunk",
    "Damage",
    "DamagedError",
    "Head",
    "Privacy",
    "pack_chunk",
    "pack_head",
    "read_chunk",
    "read_head",
    "zstd",
]

FORMAT = "kvevents-capture"
VERSION = 1
SUFFIX = ".kvcap"

_HEAD_MAGIC = 0x184D2A50
_CHUNK_MAGIC = 0x184D2A51
_FRAME = struct.Struct("<II")
_CHUNK = struct.Struct("<IIIIqq")
MAX_HEAD_BYTES = 1 << 20
MAX_CHUNK_BYTES = 1 << 30
"""A chunk that says it is longer is damaged: nothing is allocated for it."""

MAGIC = struct.pack("<I", _HEAD_MAGIC)
"""What a capture file begins with."""


class Privacy(msgspec.Struct, frozen=True):
    """What was replaced by pseudonyms before it was written.

    Attributes:
        hashes: block hashes.
        tokens: token ids.
        names: salts, sessions, adapters, owners, extra keys; whatever is not known is left out then.
    """

    hashes: bool = True
    tokens: bool = True
    names: bool = True


class Head(msgspec.Struct, frozen=True):
    """What a file says about itself.

    Attributes:
        format: always `kvevents-capture`.
        version: of the format.
        writer: the program that wrote it.
        capture: names the capture that it is a part of; the parts of one capture share their pseudonyms.
        part: its place among them, from 0.
        started: when it was begun, unix seconds.
        privacy: what was replaced.
    """

    format: str
    version: Annotated[int, msgspec.Meta(ge=1)]
    writer: str
    capture: str
    part: int
    started: float
    privacy: Privacy


class Damage(NamedTuple):
    """Where a file stopped to be readable: the end of a writer that was killed, or worse.

    Attributes:
        path: the file.
        offset: where what cannot be read begins; everything before it was read.
        size_bytes: how much is left from there on.
        reason: what was expected and what came.
    """

    path: str
    offset: int
    size_bytes: int
    reason: str


class DamagedError(Exception):
    """What comes next in a file is not whole."""


class Chunk(NamedTuple):
    """Records as they lie in a file.

    Attributes:
        records: one msgpack array of them.
        total: how many.
        first_ns: arrival of the first, unix nanoseconds.
        last_ns: and of the last.
    """

    records: bytes
    total: int
    first_ns: int
    last_ns: int


def pack_head(head: Head) -> bytes:
    """The head as it is written."""
    body = msgspec.json.encode(head)
    return _FRAME.pack(_HEAD_MAGIC, len(body)) + body


def pack_chunk(chunk: Chunk, level: int) -> bytes:
    """A chunk as it is written."""
    packed = zstd.compress(chunk.records, level)
    facts = _CHUNK.pack(0, len(packed), len(chunk.records), chunk.total, chunk.first_ns, chunk.last_ns)[4:]
    return b"".join(
        (
            _FRAME.pack(_CHUNK_MAGIC, _CHUNK.size),
            struct.pack("<I", zlib.crc32(packed, zlib.crc32(facts))),
            facts,
            packed,
        )
    )


def read_head(file: IO[bytes]) -> Head:
    """Reads the head at the start of a file.

    Raises:
        DamagedError: it is not whole, or none.
    """
    magic, size = _FRAME.unpack(_take(file, _FRAME.size, "a head"))
    if magic != _HEAD_MAGIC or size > MAX_HEAD_BYTES:
        raise DamagedError("expected the head of a capture")
    try:
        return msgspec.json.decode(_take(file, size, "a head"), type=Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"expected a head in JSON: {error}") from error


def read_chunk(file: IO[bytes]) -> Chunk | None:
    """Reads the chunk that comes next; None at the end of the file.

    Raises:
        DamagedError: it is not whole.
    """
    frame = file.read(_FRAME.size)
    if not frame:
        return None
    if len(frame) < _FRAME.size:
        raise DamagedError(f"expected a chunk, found {len(frame)} bytes")
    if _FRAME.unpack(frame) != (_CHUNK_MAGIC, _CHUNK.size):
        raise DamagedError("expected the beginning of a chunk, found other bytes")
    facts = _take(file, _CHUNK.size, "a chunk")
    crc, packed_size, size, count, first_ns, last_ns = _CHUNK.unpack(facts)
    if max(packed_size, size) > MAX_CHUNK_BYTES:
        raise DamagedError(f"expected a chunk of at most {MAX_CHUNK_BYTES} bytes, found one of {size}")
    packed = _take(file, packed_size, "a chunk")
    if zlib.crc32(packed, zlib.crc32(facts[4:])) != crc:
        raise DamagedError("expected a chunk with the checksum that it carries, found other bytes")
    try:
        unpacker = zstd.ZstdDecompressor()
        records = unpacker.decompress(packed, max_length=size)
    except zstd.ZstdError as error:
        raise DamagedError(f"expected a zstd frame: {error}") from error
    if len(records) != size or not unpacker.eof:
        raise DamagedError(
            f"expected {size} bytes of records, found {'more' if len(records) == size else len(records)}"
        )
    return Chunk(records, count, first_ns, last_ns)


def _take(file: IO[bytes], size: int, what: str) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise DamagedError(f"expected {size} more bytes of {what}, found {len(data)}: the file is cut off")
    return data
