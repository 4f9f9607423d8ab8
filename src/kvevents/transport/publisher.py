"""Publishes batches of events the way SGLang and vLLM do, and repeats them on request."""

import logging
import queue
import threading
from typing import Literal, Self

import msgspec
import zmq

from kvevents._core.wire import batch_rank
from kvevents.errors import ConfigError, TransportError, WireError
from kvevents.events import KVEventBatch
from kvevents.transport.endpoints import binds, rank_endpoint
from kvevents.transport.frames import sequence_frame
from kvevents.transport.mirror import Mirror
from kvevents.transport.replay_buffer import ReplayBuffer
from kvevents.transport.replay_server import ReplayServer, ReplayServerStats
from kvevents.transport.security import Doorkeeper, PublisherKeys
from kvevents.transport.served import open_served
from kvevents.transport.snapshot import SnapshotProvider
from kvevents.transport.snapshot_server import SnapshotServer
from kvevents.transport.sockets import (
    bind_socket,
    connect_socket,
    new_context,
    release_name,
)
from kvevents.wire import Dialect, encode_batch

_log = logging.getLogger(__name__)

_MAX_FIXINT = 0x7F


class PublisherStats(msgspec.Struct, frozen=True):
    """What a publisher did so far.

    Attributes:
        published: batches handed to the live socket.
        dropped: batches that found the queue full: they have used up their number and go out through replays only.
        replayed: batches repeated through the replay socket.
        replay_requests: requests answered.
        malformed_requests: messages at the replay socket that are no request; they get no answer.
        published_bytes: payload bytes of `published`.
        queued: batches that wait for the publisher's thread.
        last_sequence: the last number used; None before the first batch.
        snapshots: snapshots taken.
        snapshot_failures: times there was none to be had.
        refused_consumers: handshakes of consumers whose key is not listed.
        failed: batches and requests whose sending failed for a reason of ours; the first of each is logged.
    """

    published: int
    dropped: int
    replayed: int
    replay_requests: int
    malformed_requests: int
    published_bytes: int
    queued: int
    last_sequence: int | None
    snapshots: int = 0
    snapshot_failures: int = 0
    refused_consumers: int = 0
    failed: int = 0


class ZmqPublisher:
    """A PUB socket for live batches and a ROUTER socket for replays and snapshots, each served by a thread of its own.

    `publish` never waits, for a consumer or for anything else: batches go through a bounded queue, and one that finds
    it full is not sent live and counted. Its number is used up, so that consumers see the gap, and it is repeated to
    those who ask, like every other batch. Memory is bounded by `buffer_steps` + `max_queue_size` batches and `hwm`
    messages for each consumer. Thread-safe.

    Args:
        endpoint: the live socket's address for rank 0. Port 0 or `*` binds a free port.
        replay_endpoint: address of the replay socket for rank 0, always bound; None: no replays.
        snapshot: takes a snapshot of what consumers should hold (see `SnapshotProvider`), for those who come too late
            for a replay; `mirror`: the publisher reads along and takes them itself (see `Mirror`); None: none are
            offered. Needs a replay endpoint.
        topic: what batches are published under.
        buffer_steps: how many batches can be repeated.
        hwm: messages queued for one slow consumer before ZMQ drops for it.
        max_queue_size: batches that wait for the publisher's thread.
        dp_rank: data-parallel rank: both endpoints are moved by `rank_endpoint`, batches given as `KVEventBatch`
            without a rank get it, and batches that name another one are refused, since consumers would take them
            for that rank's. None: batches of any rank (or none) pass as they are, and endpoints are used as given.
        bind: whether the live socket binds; None decides as SGLang and vLLM do (see `binds`).
        dialect: how batches given as `KVEventBatch` are encoded.
        linger_s: how long `close` waits for consumers to take what was published.
        keys: encrypts both sockets and lets in those who are listed; None: everybody reads, in the clear.

    Attributes:
        endpoint: the address in use, with the real port.
        replay_endpoint: the same of the replay socket; None without one.

    Raises:
        ConfigError: a setting that cannot work.
        TransportError: an address that cannot be bound, such as one in use; the message names it.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        replay_endpoint: str | None = None,
        snapshot: SnapshotProvider | Literal["mirror"] | None = None,
        topic: str = "",
        buffer_steps: int = 10_000,
        hwm: int = 100_000,
        max_queue_size: int = 100_000,
        dp_rank: int | None = 0,
        bind: bool | None = None,
        dialect: Dialect = "sglang",
        linger_s: float = 1.0,
        keys: PublisherKeys | None = None,
    ) -> None:
        if snapshot is not None and replay_endpoint is None:
            raise ConfigError("snapshot: expected a replay_endpoint with it: that is where snapshots are asked for")
        if isinstance(snapshot, str) and snapshot != "mirror":
            raise ConfigError(f"snapshot: expected None, 'mirror' or a callable that takes one, got {snapshot!r}")
        for name, value in (("buffer_steps", buffer_steps), ("hwm", hwm)):
            if value < 0:
                raise ConfigError(f"{name}: expected 0 or more, got {value}")
        if max_queue_size < 1:
            raise ConfigError(f"max_queue_size: expected 1 or more, got {max_queue_size}")
        live = rank_endpoint(endpoint, dp_rank or 0)
        replay = None if replay_endpoint is None else rank_endpoint(replay_endpoint, dp_rank or 0)
        if keys is not None:
            keys.check(live, replay)
        self._topic = topic.encode()
        self._dp_rank = dp_rank
        self._dialect = dialect
        self._max_queue_size = max_queue_size
        self._buffer = ReplayBuffer(buffer_steps)
        self._lock = threading.Lock()
        # Its `put` neither waits nor hands the interpreter to another thread, which a socket's would.
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._closing = False
        self._published = self._published_bytes = self._dropped = self._failed = 0

        linger_ms = int(linger_s * 1000)
        self._mirror = Mirror(self._buffer) if snapshot == "mirror" else None
        provider = self._mirror if isinstance(snapshot, str) else snapshot
        self._snapshots = None if provider is None else SnapshotServer(provider, payload_of=self._buffer.get)
        self._replays: ReplayServer | None = None
        self._context = new_context()
        self._doorkeeper = None if keys is None else Doorkeeper(self._context, keys)
        try:
            self._pub = open_served(zmq.PUB, live, self._context, hwm=hwm, keys=keys)
        except BaseException:
            self._end_context()
            raise
        try:
            self._pub.setsockopt(zmq.LINGER, linger_ms)
            open_live = bind_socket if (binds(live) if bind is None else bind) else connect_socket
            self.endpoint = open_live(self._pub, live)
            if replay is not None:
                self._replays = ReplayServer(
                    replay,
                    self._buffer,
                    topic=self._topic,
                    snapshots=self._snapshots,
                    # ROUTER drops what does not fit; half of the mark is free at any rate once a consumer has read.
                    send_hwm=2 * (buffer_steps + 1),
                    context=self._context,
                    linger_ms=linger_ms,
                    keys=keys,
                )
        except BaseException:
            self._pub.close(0)
            self._end_context()
            raise
        self.replay_endpoint = None if self._replays is None else self._replays.endpoint
        self._thread = threading.Thread(target=self._run, name=f"kvevents-publisher-{self.endpoint}", daemon=True)
        self._thread.start()

    def publish(self, batch: KVEventBatch | bytes | bytearray | memoryview, /) -> int:
        """Queues a batch and returns the sequence number it has used; never waits.

        Args:
            batch: a batch, encoded here, or one that is encoded already. A queue that is full drops it from the live
                stream (see `stats`).

        Raises:
            TransportError: the publisher is closed.
            ConfigError: the batch names another rank than the publisher's; no number was used.
        """
        if isinstance(batch, KVEventBatch):
            payload = self._encode(batch)
        else:
            payload = batch if isinstance(batch, bytes) else bytes(memoryview(batch))
        self._check_rank(payload)
        with self._lock:
            if self._closing:
                raise TransportError(f"publisher at {self.endpoint} is closed")
            sequence = self._buffer.append(payload)
            if self._queue.qsize() < self._max_queue_size:
                self._queue.put((sequence, payload))
            else:
                self._dropped += 1
        return sequence

    def stats(self) -> PublisherStats:
        """Counters."""
        replays = ReplayServerStats(0, 0, 0) if self._replays is None else self._replays.stats()
        snapshots = None if self._snapshots is None else self._snapshots.stats()
        with self._lock:
            used = self._buffer.next
            return PublisherStats(
                published=self._published,
                dropped=self._dropped,
                replayed=replays.replayed,
                replay_requests=replays.requests,
                malformed_requests=replays.malformed,
                published_bytes=self._published_bytes,
                queued=self._queue.qsize(),
                last_sequence=used - 1 if used else None,
                snapshots=0 if snapshots is None else snapshots.taken,
                snapshot_failures=0 if snapshots is None else snapshots.failed,
                refused_consumers=0 if self._doorkeeper is None else self._doorkeeper.refused,
                failed=self._failed + replays.failed,
            )

    def close(self) -> None:
        """Sends what is queued, gives consumers `linger_s` to take it, and closes the sockets; idempotent."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._queue.put(None)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encode(self, batch: KVEventBatch) -> bytes:
        if batch.attn_dp_rank is None and self._dp_rank is not None:
            batch = msgspec.structs.replace(batch, attn_dp_rank=self._dp_rank)
        return encode_batch(batch, dialect=self._dialect)

    def _check_rank(self, payload: bytes) -> None:
        """Refuses a batch of another rank; one that nobody can read is not our business."""
        own = self._dp_rank
        # An engine's batch ends with its rank, nearly always in one byte.
        if own is None or (payload and payload[-1] == own <= _MAX_FIXINT):
            return
        try:
            rank = batch_rank(payload)
        except WireError:
            return
        if rank is not None and rank != own:
            raise ConfigError(
                f"batch of rank {rank}: expected rank {own}, which this publisher has. Name the rank where the batch is"
                f" made (take_batch(dp_rank={own})), or give the publisher dp_rank=None to let every rank pass"
            )

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                try:
                    self._send(*item)
                    if self._mirror is not None:
                        self._mirror.follow(*item)
                except Exception:
                    self._failed += 1
                    if self._failed == 1:
                        _log.exception("%s: batch %d failed; later failures are only counted", self.endpoint, item[0])
        finally:
            if self._replays is not None:
                self._replays.close()
            if self._snapshots is not None:
                self._snapshots.close()
            release_name(self._pub, self.endpoint)
            self._pub.close()
            self._end_context()

    def _end_context(self) -> None:
        if self._doorkeeper is not None:
            self._doorkeeper.close()
        self._context.term()

    def _send(self, sequence: int, payload: bytes) -> None:
        send = self._pub.send
        send(self._topic, zmq.SNDMORE)
        send(sequence_frame(sequence), zmq.SNDMORE)
        send(payload)
        self._published += 1
        self._published_bytes += len(payload)
