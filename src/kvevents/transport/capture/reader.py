"""Reads captures, and recorded streams of other origin, as one sequence of records."""

import os
from collections.abc import Iterable, Iterator
from typing import IO

import msgspec

from kvevents.errors import ConfigError
from kvevents.transport.capture.files import CaptureFile, capture_files
from kvevents.transport.capture.golden import golden_records
from kvevents.transport.capture.layout import (
    FORMAT,
    VERSION,
    Chunk,
    Damage,
    DamagedError,
    Head,
    read_chunk,
    read_head,
)
from kvevents.transport.capture.records import (
    BatchLine,
    CapturedBatch,
    CapturedRefusal,
    CapturedReset,
    CapturedState,
    CaptureRecord,
    CaptureSource,
    EndLine,
    Line,
    RefusalLine,
    ResetLine,
    SourceLine,
    StateLine,
)

_NS = 1e9


class CaptureReader:
    """The records of a capture in the order in which they were written.

    Iterating reads from the start, a chunk at a time; each iteration is a reading of its own. A file that ends in the
    middle of a chunk, or is damaged, is read up to there, and `damage` says so. One thread.

    Args:
        path: a file; a folder, for all captures in it by name, so that the parts of one come in order; or a recorded
            stream: `x.jsonl` (also `.xz`), also in a tar archive, as in `golden/vllm.tar.xz/sha256.jsonl`.

    Attributes:
        heads: the heads of the files read so far; recorded streams of other origin have none.
        damage: what could not be read so far.
        ended: whether the last capture read so far was closed by its writer.

    Raises:
        ConfigError: there is no such file, or it is no capture, or of a later version (while it is read).
        TransportError: it cannot be read (while it is read).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._files = capture_files(path)
        self.heads: list[Head] = []
        self.damage: list[Damage] = []
        self.ended = True

    def __iter__(self) -> Iterator[CaptureRecord]:
        self.heads, self.damage, self.ended = [], [], True
        for file in self._files:
            with file.open() as (is_capture, data):
                yield from self._records(file, data) if is_capture else self._golden(file, data)

    def once(self) -> Iterator[CaptureRecord]:
        """All records but the batches that a replay socket repeated after they had come."""
        last: dict[tuple[str, int | None], int] = {}
        for record in self:
            key = (record.source.worker_id, record.source.dp_rank)
            if isinstance(record, CapturedReset):
                last.pop(key, None)
            elif isinstance(record, CapturedBatch) and record.sequence is not None:
                if record.replayed and record.sequence <= last.get(key, -1):
                    continue
                last[key] = record.sequence
            yield record

    def batches(self) -> Iterator[CapturedBatch]:
        """The batches alone, each once."""
        return (record for record in self.once() if isinstance(record, CapturedBatch))

    def sources(self) -> list[CaptureSource]:
        """Every source of the capture, by first appearance; reads all of it."""
        return list(dict.fromkeys(record.source for record in self))

    def _records(self, file: CaptureFile, data: IO[bytes]) -> Iterator[CaptureRecord]:
        self.ended = False
        offset = 0
        decoder = msgspec.msgpack.Decoder(list[Line])
        try:
            head = read_head(data)
            if head.format != FORMAT or head.version > VERSION:
                raise ConfigError(
                    f"{file}: expected {FORMAT} of version 1 to {VERSION}, got {head.format} of version {head.version};"
                    f" it was written by {head.writer}"
                )
            self.heads.append(head)
            offset = data.tell()
            sources: dict[int, CaptureSource] = {}
            while (chunk := read_chunk(data)) is not None:
                lines = _lines(decoder, chunk)
                offset = data.tell()
                yield from self._resolved(lines, sources)
        except KeyError as error:
            self.damage.append(Damage(str(file), offset, 0, f"expected a source that was named before, found {error}"))
        except DamagedError as error:
            size = data.seek(0, os.SEEK_END) - offset
            self.damage.append(Damage(str(file), offset, size, str(error)))

    def _resolved(self, lines: Iterable[Line], sources: dict[int, CaptureSource]) -> Iterator[CaptureRecord]:
        for line in lines:
            if type(line) is BatchLine:
                yield CapturedBatch(
                    line.time_ns / _NS, sources[line.source], line.sequence, line.payload, line.topic, line.replayed
                )
            elif isinstance(line, SourceLine):
                sources[line.number] = line.source
            elif isinstance(line, EndLine):
                self.ended = line.is_last
            elif isinstance(line, StateLine):
                yield CapturedState(
                    line.time_ns / _NS, sources[line.source], line.state, line.code, line.detail, line.counters
                )
            elif isinstance(line, ResetLine):
                yield CapturedReset(line.time_ns / _NS, sources[line.source])
            elif isinstance(line, RefusalLine):
                yield CapturedRefusal(
                    line.time_ns / _NS, sources[line.source], line.sequence, line.size_bytes, line.reason, line.offset
                )

    def _golden(self, file: CaptureFile, data: IO[bytes]) -> Iterator[CaptureRecord]:
        try:
            yield from golden_records(file.name, data)
        except DamagedError as error:
            self.damage.append(Damage(str(file), 0, 0, str(error)))


def _lines(decoder: "msgspec.msgpack.Decoder[list[Line]]", chunk: Chunk) -> list[Line]:
    try:
        return decoder.decode(chunk.records)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DamagedError(f"expected records of this version: {error}") from error
