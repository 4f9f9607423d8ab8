"""Writes captures: chunk by chunk, so that whatever ends the writer leaves a file that can be read up to there."""

import os
import secrets
import threading
import time
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from kvevents._core import __version__
from kvevents._core.capture import Pseudonyms, Rewriter, measure
from kvevents.errors import ConfigError, TransportError, WireError
from kvevents.transport.capture.layout import FORMAT, SUFFIX, VERSION, Chunk, Head, Privacy, pack_chunk, pack_head
from kvevents.transport.capture.records import (
    BatchLine,
    CaptureSource,
    EndLine,
    Line,
    RefusalLine,
    ResetLine,
    SourceLine,
    StateLine,
)
from kvevents.transport.source import Source
from kvevents.transport.state import SourceState

KEY_BYTES = 32
_ARRAY_HEADER_BYTES = 5


class WrittenBatch(NamedTuple):
    """What was in a batch.

    Attributes:
        events: its events, unreadable ones included.
        blocks: block hashes in them.
        cleared: clears among them.
    """

    events: int
    blocks: int
    cleared: int


class CaptureStats(msgspec.Struct):
    """What a writer did so far.

    Attributes:
        batches: batches written.
        events: their events.
        blocks: block hashes in them.
        payload_bytes: their bytes as they came.
        file_bytes: bytes written to files, compressed.
        files: files begun.
        refused: batches that could not be read; only that they came is written.
        emptied_events: events of unknown types, or unusable, of which nothing but the shape is written.
        dropped_fields: fields and elements of unknown meaning that are not written.
    """

    batches: int = 0
    events: int = 0
    blocks: int = 0
    payload_bytes: int = 0
    file_bytes: int = 0
    files: int = 0
    refused: int = 0
    emptied_events: int = 0
    dropped_fields: int = 0


class CaptureWriter:
    """Appends what sources publish to files in a folder.

    By default all of it is pseudonymous: block hashes, token ids, salts, sessions, adapters and extra keys are replaced
    under a random key that is never written, and whatever is not known is left out. What can be learned all the same
    is in `docs/capture.md`. Thread-safe; the batches of one source have to come in their order.

    What is written waits in memory for at most `chunk_bytes` or `flush_interval_s` (counted by whoever calls
    `flush_due`, and by every write); that is what a killed process loses. A power cut loses what the system had not
    brought to disk, unless `sync` is set.

    Args:
        folder: where the files go; made if it is not there. Files are never appended to or overwritten.
        keep_hashes: block hashes stay as they are.
        keep_tokens: token ids stay as they are.
        raw: everything stays as it is, unknown and unreadable parts too.
        key: 32 random bytes in the place of a key of the writer's own, so that several captures use the same
            pseudonyms. Whoever has it can test guesses.
        rotate_bytes: a file that has so many bytes is closed and the next one begun.
        rotate_s: the same by its age.
        chunk_bytes: records are compressed and written so many bytes at a time.
        flush_interval_s: or so often.
        sync: every chunk is brought to disk before the next one; otherwise only whole files are.
        level: of the compression.

    Attributes:
        path: the file being written.
        files: all files so far.

    Raises:
        ConfigError: a setting that cannot work.
        TransportError: the folder cannot be written to.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep_hashes: bool = False,
        keep_tokens: bool = False,
        raw: bool = False,
        key: bytes | None = None,
        rotate_bytes: int = 256 << 20,
        rotate_s: float = 3_600.0,
        chunk_bytes: int = 1 << 20,
        flush_interval_s: float = 0.5,
        sync: bool = False,
        level: int = 1,
    ) -> None:
        sizes = {"rotate_bytes": rotate_bytes, "rotate_s": rotate_s, "chunk_bytes": chunk_bytes}
        for name, value in {**sizes, "flush_interval_s": flush_interval_s}.items():
            if not value > 0:
                raise ConfigError(f"{name}: expected a number above 0, got {value!r}")
        self._folder = Path(folder)
        self._privacy = Privacy(hashes=not (keep_hashes or raw), tokens=not (keep_tokens or raw), names=not raw)
        self._pseudonyms = Pseudonyms(secrets.token_bytes(KEY_BYTES) if key is None else key)
        self._rotate_bytes, self._rotate_s = rotate_bytes, rotate_s
        self._chunk_bytes, self._flush_interval_s = chunk_bytes, flush_interval_s
        self._sync, self._level = sync, level
        self._lock = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._rewriters: dict[tuple[str, int | None], Rewriter] = {}
        self._stats = CaptureStats()
        self._failure: str | None = None
        self._is_closed = False
        self._capture = secrets.token_hex(8)
        self._name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + f"-{self._capture[:6]}"
        self._buffer = bytearray()
        self._count = self._first_ns = self._last_ns = 0
        self._flushed_at = time.monotonic()
        self._file = -1
        self.files: list[Path] = []
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._begin(0)
        except OSError as error:
            raise TransportError(f"cannot write a capture to {self._folder}: {error.strerror or error}") from error

    @property
    def failure(self) -> str | None:
        """Why nothing can be written any more; None if it can."""
        return self._failure

    @property
    def pseudonyms(self) -> Pseudonyms:
        """The names under which values are written, to ask for the pseudonym of a value one has."""
        return self._pseudonyms

    def write_batch(
        self,
        source: Source | CaptureSource,
        payload: bytes | bytearray | memoryview,
        *,
        sequence: int | None,
        topic: bytes | None = None,
        replayed: bool = False,
        arrived: float | None = None,
    ) -> WrittenBatch:
        """Writes a batch and says what is in it.

        Args:
            source: who published it.
            payload: the encoded batch.
            sequence: its number.
            topic: what it was published under.
            replayed: it came through the replay socket.
            arrived: unix seconds; now if None.

        Raises:
            WireError: it cannot be read. That it came is written, and the batch itself if the capture is raw.
            TransportError: the file cannot be written (any more).
        """
        time_ns = time.time_ns() if arrived is None else int(arrived * 1e9)
        with self._lock:
            self._turn()
            stats = self._stats
            number = self._number(source, time_ns)
            size = memoryview(payload).nbytes
            try:
                data, written = self._rewritten(source, payload)
            except WireError as error:
                stats.refused += 1
                if self._privacy.names:
                    reason = "the batch cannot be read"
                    self._put(RefusalLine(time_ns, number, sequence, size, reason, error.offset), time_ns)
                else:
                    self._put(BatchLine(time_ns, number, sequence, bytes(payload), topic, replayed), time_ns)
                raise
            stats.batches += 1
            stats.events += written.events
            stats.blocks += written.blocks
            stats.payload_bytes += size
            self._put(BatchLine(time_ns, number, sequence, data, topic, replayed), time_ns)
            return written

    def write_state(self, source: Source | CaptureSource, state: SourceState) -> None:
        """Writes that a source is in another state.

        Raises:
            TransportError: the file cannot be written (any more).
        """
        counters = {
            name: value
            for name, value in msgspec.structs.asdict(state.counters).items()
            if isinstance(value, int) and value
        }
        with self._lock:
            self._turn()
            now = time.time_ns()
            number = self._number(source, now)
            # The words may hold addresses, or values of a batch that was refused.
            detail = "" if self._privacy.names else state.reason
            self._put(StateLine(now, number, state.state, state.code, detail, counters), now)

    def write_reset(self, source: Source | CaptureSource) -> None:
        """Writes that a source began anew, so that nothing announced before holds any more.

        Raises:
            TransportError: the file cannot be written (any more).
        """
        with self._lock:
            self._turn()
            now = time.time_ns()
            self._put(ResetLine(now, self._number(source, now)), now)

    def flush(self) -> None:
        """Writes what waits in memory.

        Raises:
            TransportError: the file cannot be written (any more).
        """
        with self._lock:
            self._check_open()
            self._write_chunk()

    def flush_due(self) -> None:
        """The same if it has waited for `flush_interval_s`; also begins the next file if it is time.

        Raises:
            TransportError: the file cannot be written (any more).
        """
        with self._lock:
            self._turn()

    def stats(self) -> CaptureStats:
        """Counters, consistent at one moment."""
        with self._lock:
            return msgspec.structs.replace(self._stats)

    def close(self) -> None:
        """Writes what waits, says that this is the end, and brings it to disk; idempotent.

        Raises:
            TransportError: the file cannot be written.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                if self._failure is None:
                    self._end(is_last=True)
            finally:
                self._close_file()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Under the lock.

    def _rewritten(
        self, source: Source | CaptureSource, payload: bytes | bytearray | memoryview
    ) -> tuple[bytes, WrittenBatch]:
        if not self._privacy.names:
            return bytes(payload), WrittenBatch(*measure(payload))
        key = (source.worker_id, source.dp_rank)
        rewriter = self._rewriters.get(key)
        if rewriter is None:
            kept = {"keep_hashes": not self._privacy.hashes, "keep_tokens": not self._privacy.tokens}
            rewriter = self._rewriters[key] = Rewriter(self._pseudonyms, **kept)
        rewritten = rewriter.rewrite(payload)
        self._stats.emptied_events += rewritten.emptied_events
        self._stats.dropped_fields += rewritten.dropped_fields
        return rewritten.payload, WrittenBatch(rewritten.events, rewritten.blocks, rewritten.cleared)

    def _number(self, source: Source | CaptureSource, time_ns: int) -> int:
        """The number of a source in this file, which it gets by a record of its own."""
        key = (source.worker_id, source.dp_rank)
        number = self._numbers.get(key)
        if number is None:
            said = source if isinstance(source, CaptureSource) else CaptureSource.of(source)
            number = self._numbers[key] = len(self._numbers)
            self._put(SourceLine(number, said), time_ns)
        return number

    def _put(self, line: Line, time_ns: int) -> None:
        if not self._count:
            self._first_ns = time_ns
        self._encoder.encode_into(line, self._buffer, len(self._buffer))
        self._count += 1
        self._last_ns = time_ns
        if len(self._buffer) >= self._chunk_bytes:
            self._write_chunk()

    def _turn(self) -> None:
        """Writes what has waited long enough and begins the next file if it is time; never in the middle of a write."""
        self._check_open()
        now = time.monotonic()
        if now - self._flushed_at >= self._flush_interval_s:
            self._write_chunk()
        if self._file_bytes >= self._rotate_bytes or now - self._begun_at >= self._rotate_s:
            self._end(is_last=False)
            self._close_file()
            try:
                self._begin(self._part + 1)
            except OSError as error:
                raise self._fail(error) from error

    def _write_chunk(self) -> None:
        self._flushed_at = time.monotonic()
        if not self._count:
            return
        self._buffer[:_ARRAY_HEADER_BYTES] = b"\xdd" + self._count.to_bytes(4, "big")
        chunk = Chunk(bytes(self._buffer), self._count, self._first_ns, self._last_ns)
        self._clear_buffer()
        try:
            self._write(pack_chunk(chunk, self._level))
            if self._sync:
                os.fsync(self._file)
        except OSError as error:
            raise self._fail(error) from error

    def _end(self, *, is_last: bool) -> None:
        self._encoder.encode_into(EndLine(time.time_ns(), is_last), self._buffer, len(self._buffer))
        self._count += 1
        self._first_ns = self._first_ns or time.time_ns()
        self._write_chunk()
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._fail(error) from error

    def _begin(self, part: int) -> None:
        self._part = part
        self.path = self._folder / f"{self._name}.{part:06d}{SUFFIX}"
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.files.append(self.path)
        self._file_bytes = 0
        self._begun_at = time.monotonic()
        self._numbers: dict[tuple[str, int | None], int] = {}
        self._clear_buffer()
        self._stats.files += 1
        head = Head(FORMAT, VERSION, f"kvevents {__version__}", self._capture, part, time.time(), self._privacy)
        self._write(pack_head(head))

    def _clear_buffer(self) -> None:
        self._buffer = bytearray(_ARRAY_HEADER_BYTES)
        self._count = self._first_ns = 0

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            written = os.write(self._file, left)
            left = left[written:]
            self._file_bytes += written
            self._stats.file_bytes += written

    def _close_file(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise TransportError(self._failure)
        if self._is_closed:
            raise TransportError(f"the capture {self.path} is closed")

    def _fail(self, error: OSError) -> TransportError:
        self._failure = f"cannot write the capture {self.path}: {error.strerror or error}"
        return TransportError(self._failure)
