"""The publisher's side of snapshots."""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Self

import msgspec

from kvevents.errors import ConfigError
from kvevents.transport.snapshot import (
    SnapshotHead,
    SnapshotProvider,
    digest_of,
    pack_parts,
    read_snapshot_request,
)

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


class SnapshotServerStats(msgspec.Struct, frozen=True):
    """What a server did so far.

    Attributes:
        taken: snapshots taken.
        failed: times there was none to be had.
        served: chunks sent.
        served_bytes: bytes of them.
        held_bytes: memory that the snapshots kept for consumers take now.
    """

    taken: int
    failed: int
    served: int
    served_bytes: int
    held_bytes: int


class _Held(NamedTuple):
    head: SnapshotHead
    chunks: list[bytes]


class SnapshotServer:
    """Answers requests for snapshots; whoever owns the ROUTER hands them over and sends the answers.

    Snapshots are taken one at a time by a thread of the server's own, so that neither live batches nor replays wait.
    Two are kept: the newest, and the one before for those who are in the middle of it; a consumer that comes within
    `fresh_s` gets the newest, so that many who come at once cost one. When nobody has asked for `keep_s` they are let
    go. `answer` belongs to one thread.

    Args:
        provider: takes a snapshot.
        payload_of: the bytes of a batch by number, None where they are not at hand any more; what consumers
            recognise the publisher's life by.
        fresh_s: how long a snapshot is handed out to whoever begins.
        keep_s: how long after the last question it is kept.
        max_bytes: a larger one is not offered.

    Raises:
        ConfigError: a setting that cannot work.
    """

    def __init__(
        self,
        provider: SnapshotProvider,
        *,
        payload_of: Callable[[int], bytes | None] = lambda _: None,
        fresh_s: float = 1.0,
        keep_s: float = 30.0,
        max_bytes: int = 1 << 30,
    ) -> None:
        if not callable(provider):
            raise ConfigError(f"snapshot: expected a callable that takes one, got {provider!r}")
        self._provider = provider
        self._payload_of = payload_of
        self._fresh_s = fresh_s
        self._keep_s = keep_s
        self._asked_at = float("-inf")
        self._max_bytes = max_bytes
        self._held: dict[int, _Held] = {}  # by id, the newest last
        self._failure = ""
        self._settled_at = float("-inf")
        self._wanted = threading.Event()
        self._closing = False
        self._taken = self._failed = self._served = self._served_bytes = 0
        self._thread: threading.Thread | None = None

    def answer(self, request: bytes, /) -> tuple[bytes, bytes] | None:
        """Head and chunk that answer a request; None: it asks for something else. Never waits."""
        wanted = read_snapshot_request(request)
        if wanted is None:
            return None
        self._asked_at = time.monotonic()
        head, chunk = self._open() if wanted == "open" else self._chunk(*wanted)
        if head.status == "ready":
            self._served += 1
            self._served_bytes += len(chunk)
        return msgspec.msgpack.encode(head), chunk

    def stats(self) -> SnapshotServerStats:
        """Counters; any thread may ask."""
        held = sum(held.head.size for held in list(self._held.values()))
        return SnapshotServerStats(self._taken, self._failed, self._served, self._served_bytes, held)

    def close(self) -> None:
        """Waits for a snapshot that is being taken, and lets go of all; idempotent."""
        self._closing = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
        self._held.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> tuple[SnapshotHead, bytes]:
        held = self._held
        is_fresh = time.monotonic() < self._settled_at + self._fresh_s and (held or self._failure)
        if self._wanted.is_set() or not is_fresh:
            self._want()
            return SnapshotHead(status="preparing"), b""
        if self._failure:
            return SnapshotHead(status="unavailable", reason=self._failure), b""
        return self._chunk(next(reversed(held)), 0)

    def _chunk(self, number: int, chunk: int) -> tuple[SnapshotHead, bytes]:
        held = self._held.get(number)
        if held is None or chunk >= len(held.chunks):
            return SnapshotHead(status="gone", id=number), b""
        return msgspec.structs.replace(held.head, chunk=chunk), held.chunks[chunk]

    def _want(self) -> None:
        self._wanted.set()
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._run, name="kvevents-snapshots", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            if not self._wanted.wait(self._keep_s if self._held else None):
                if time.monotonic() >= self._asked_at + self._keep_s:
                    self._held = {}
                continue
            if self._closing:
                return
            try:
                taken = self._take()
            except Exception as error:
                self._fail(f"{type(error).__name__}: {error}", error)
            else:
                if isinstance(taken, str):
                    self._fail(taken, None)
                else:
                    self._keep(taken)
            self._settled_at = time.monotonic()
            self._wanted.clear()

    def _take(self) -> _Held | str:
        given = self._provider()
        if given is None:
            return "none can be taken now"
        sequence, parts = given
        size, chunks = _cut(parts, self._max_bytes)
        if size > self._max_bytes:
            return f"it has more than {self._max_bytes} bytes"
        payload = None if sequence is None else self._payload_of(sequence)
        head = SnapshotHead(
            status="ready",
            id=secrets.randbits(64),
            sequence=sequence,
            digest=None if payload is None else digest_of(payload),
            size=size,
            chunks=len(chunks),
        )
        return _Held(head, chunks)

    def _keep(self, taken: _Held) -> None:
        self._taken += 1
        self._failure = ""
        newest = dict(list(self._held.items())[-1:])
        self._held = newest | {taken.head.id: taken}

    def _fail(self, reason: str, error: Exception | None) -> None:
        self._failed += 1
        self._failure = reason
        if self._failed == 1 and error is not None:
            _log.error("no snapshot: %s; later failures are only counted", reason, exc_info=error)


def _cut(parts: Iterable[bytes], max_bytes: int) -> tuple[int, list[bytes]]:
    """The size of a snapshot and its chunks, at least one; cut short once it is too large."""
    size, chunks, rest = 0, [], bytearray()
    for piece in pack_parts(parts):
        size += len(piece)
        if size > max_bytes:
            break
        view = memoryview(piece)
        while len(rest) + len(view) >= _CHUNK_BYTES:
            room = _CHUNK_BYTES - len(rest)
            chunks.append(bytes(rest) + bytes(view[:room]))
            rest.clear()
            view = view[room:]
        rest += view
    if rest or not chunks:
        chunks.append(bytes(rest))
    return size, chunks
