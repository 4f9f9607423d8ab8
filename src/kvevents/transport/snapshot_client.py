"""The consumer's side of a snapshot."""

import msgspec

from kvevents.errors import WireError
from kvevents.transport.snapshot import (
    MAX_HEAD_BYTES,
    SNAPSHOT_MARK,
    SnapshotHead,
    chunk_request,
    unpack_parts,
)


class SnapshotDownload:
    """One snapshot on its way in: says what to ask for, chunk after chunk, and puts them together.

    It has no socket and no clock, so that any loop can drive it: send `request()` as the last frame of
    `[empty, frame]`, hand `take` the head and chunk of the answer, and go on until `is_complete`. An answer that says
    `preparing` means the same request again a little later.

    Args:
        max_bytes: a larger snapshot is refused before memory is taken for it.

    Attributes:
        head: of the chunk that came last; None before the first.
    """

    def __init__(self, max_bytes: int) -> None:
        self.head: SnapshotHead | None = None
        self._max_bytes = max_bytes
        self._data = bytearray()
        self._chunks = 0

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is there."""
        return self.head is not None and self._chunks >= self.head.chunks

    def request(self) -> bytes:
        """The frame that asks for what is needed next."""
        return SNAPSHOT_MARK if self.head is None else chunk_request(self.head.id, self._chunks)

    def take(self, head: bytes, chunk: bytes) -> SnapshotHead:
        """Takes an answer; after one that says `gone` the download begins anew.

        Raises:
            WireError: what came does not fit what was asked for, or is too large.
        """
        read = _read(head)
        if read.status == "gone":
            self.head, self._chunks = None, 0
            self._data.clear()
        if read.status != "ready":
            return read
        if read.size > self._max_bytes:
            raise WireError(f"expected a snapshot of at most {self._max_bytes} bytes, got one of {read.size}", 0)
        wanted = self.head or read
        if (read.id, read.chunk, read.chunks, read.size) != (wanted.id, self._chunks, wanted.chunks, wanted.size):
            raise WireError(
                f"expected chunk {self._chunks} of the {wanted.chunks} of snapshot {wanted.id:#x},"
                f" got chunk {read.chunk} of the {read.chunks} of {read.id:#x}",
                0,
            )
        self._data += chunk
        self._chunks += 1
        self.head = read
        if len(self._data) > read.size or (self.is_complete and len(self._data) < read.size):
            raise WireError(f"expected a snapshot of {read.size} bytes, got {len(self._data)}", len(self._data))
        return read

    def parts(self) -> list[memoryview]:
        """The parts of a complete snapshot.

        Raises:
            WireError: if their lengths do not add up.
        """
        return unpack_parts(self._data)


def _read(head: bytes) -> SnapshotHead:
    if len(head) > MAX_HEAD_BYTES:
        raise WireError(f"expected the head of a snapshot of at most {MAX_HEAD_BYTES} bytes, got {len(head)}", 0)
    try:
        return msgspec.msgpack.decode(head, type=SnapshotHead)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"expected the head of a snapshot: {error}", 0) from error
