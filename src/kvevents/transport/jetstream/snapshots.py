"""An index as of one place in the log, kept in the object store for whoever comes later."""

import asyncio
import base64
import hashlib
import time
from datetime import UTC, datetime
from typing import Protocol

import msgspec
import nats.errors
import nats.js.errors

from kvevents.errors import CapacityError, TransportError, WireError
from kvevents.transport.jetstream.connection import Connection
from kvevents.transport.jetstream.feed import Delivery, Feed
from kvevents.transport.jetstream.settings import JetStreamSettings

_MAGIC = b"KVJS\x01"
_LENGTH_BYTES = 4
_LOAD_TIMEOUT_S = 120.0


class SnapshotIndex(Protocol):
    """What can be saved whole and put back. `PrefixIndex` is one."""

    @property
    def block_size(self) -> int:
        """Tokens in a block; snapshots of another one are no use."""

    def snapshot(self) -> bytes:
        """All that is held, consistent."""

    def restore(self, data: bytes, /) -> None:
        """Replaces what is held."""


class SourceMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a source stands in a snapshot.

    Attributes:
        worker: its id.
        rank: its data-parallel rank.
        incarnation: of its publisher.
        last: the last batch that is in the snapshot.
        fault: name and words of what is missing; None if nothing is.
        is_forgotten: the index holds nothing of it, since it was gone.
    """

    worker: str
    rank: int
    incarnation: str | None = None
    last: int | None = None
    fault: tuple[str, str] | None = None
    is_forgotten: bool = False


class LogMark(msgspec.Struct, frozen=True):
    """What goes before the index's own bytes.

    Attributes:
        stream: when the stream was made.
        position: the last message whose effect is in the index.
        recent: ids of the last messages, by position, to tell whether the stream is still as it was.
        sources: where each source stands.
        taken: when, unix seconds.
    """

    stream: str
    position: int
    recent: list[tuple[int, str]]
    sources: list[SourceMark]
    taken: float


def pack(mark: LogMark, image: bytes) -> bytes:
    """A snapshot as it is stored."""
    head = msgspec.msgpack.encode(mark)
    return b"".join([_MAGIC, len(head).to_bytes(_LENGTH_BYTES, "big"), head, image])


def unpack(data: bytes) -> tuple[LogMark, memoryview]:
    """The mark and the index's bytes.

    Raises:
        WireError: it is no snapshot of this version.
    """
    start = len(_MAGIC) + _LENGTH_BYTES
    if not data.startswith(_MAGIC) or len(data) < start:
        raise WireError(f"expected a snapshot that begins with {_MAGIC!r}, got {bytes(data[:5])!r}", 0)
    end = start + int.from_bytes(data[len(_MAGIC) : start], "big")
    try:
        return msgspec.msgpack.decode(data[start:end], type=LogMark), memoryview(data)[end:]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"the head of the snapshot: {error}", start) from None


class SnapshotStore:
    """The snapshots of a fleet, one for each block size of an index."""

    def __init__(self, connection: Connection, settings: JetStreamSettings, block_size: int) -> None:
        self._connection = connection
        self._jetstream = connection.jetstream
        self._heartbeat_s = settings.heartbeat_s
        self._bucket = settings.names.snapshots
        self._limit = settings.max_snapshot_bytes
        self._name = f"index-{block_size}"

    async def age(self) -> float | None:
        """Seconds since the last one was saved; None if there is none.

        Raises:
            TransportError: no answer.
        """
        try:
            info = await (await self._jetstream.object_store(self._bucket)).get_info(self._name)
        except nats.js.errors.NotFoundError:
            return None
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"snapshot {self._name}: {error!r}") from None
        saved = datetime.fromisoformat(str(info.mtime)) if info.mtime else datetime.fromtimestamp(0, UTC)
        return max(0.0, time.time() - saved.timestamp())

    async def load(self) -> bytes | None:
        """The last one; None if there is none.

        Raises:
            CapacityError: it is larger than allowed.
            TransportError: it could not be had, or is damaged.
        """
        try:
            store = await self._jetstream.object_store(self._bucket)
            info = await store.get_info(self._name)
        except nats.js.errors.NotFoundError:
            return None
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"snapshot {self._name} could not be had: {error!r}") from None
        self._check_size(info.size or 0)
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                data = await self._read_chunks(info.nuid or "", info.chunks or 0)
        except TimeoutError:
            raise TransportError(f"snapshot {self._name} could not be had within {_LOAD_TIMEOUT_S:g} s") from None
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
        if info.digest is None or info.digest.partition("=")[2] != digest:
            raise TransportError(f"snapshot {self._name} is damaged, or was replaced while it was read")
        return data

    async def _read_chunks(self, nuid: str, count: int) -> bytes:
        """The chunks of an object, by a feed: nats-py's own reading takes four times as long."""
        chunks: list[bytes] = []
        done = asyncio.Event()

        async def take(delivery: Delivery) -> None:
            chunks.append(delivery.data)
            if not delivery.pending or len(chunks) == count:
                done.set()

        feed = await Feed.open(
            self._connection,
            f"OBJ_{self._bucket}",
            take,
            heartbeat_s=self._heartbeat_s,
            start=1,
            subject=f"$O.{self._bucket}.C.{nuid}",
        )
        if feed.pending:
            await feed.wait(done)
        await feed.close()
        return b"".join(chunks)

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise CapacityError(
                f"snapshot {self._name}: {size} bytes, allowed are {self._limit} (max_snapshot_bytes)",
                requested=size,
                available=self._limit,
            )

    async def save(self, data: bytes) -> None:
        """Puts one in place of the last; readers get the one or the other.

        Raises:
            CapacityError: it is larger than allowed.
            TransportError: the broker did not take it.
        """
        self._check_size(len(data))
        try:
            await (await self._jetstream.object_store(self._bucket)).put(self._name, data)
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"snapshot {self._name} could not be saved: {error!r}") from None
