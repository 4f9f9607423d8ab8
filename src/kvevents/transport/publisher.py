"""Publishes batches of events the way SGLang and vLLM do, and repeats them on request."""

import threading
from collections import deque
from typing import Self

import msgspec
import zmq

from kvevents.errors import ConfigError, TransportError
from kvevents.events import KVEventBatch
from kvevents.transport.endpoints import binds, rank_endpoint
from kvevents.transport.frames import END_MARK, read_request, sequence_frame
from kvevents.transport.sockets import ZmqSocket, bind_socket, connect_socket, new_context, open_socket
from kvevents.transport.wakeup import Wakeup
from kvevents.wire import Dialect, encode_batch

_BATCHES_A_TURN = 256


class PublisherStats(msgspec.Struct, frozen=True):
    """What a publisher did so far.

    Attributes:
        published: batches handed to the live socket.
        dropped: batches that found the queue full; each has used up its number.
        replayed: batches repeated through the replay socket.
        replay_requests: requests answered.
        malformed_requests: messages at the replay socket that are no request; they get no answer.
        published_bytes: payload bytes of `published`.
        queued: batches that wait for the publisher's thread.
        last_sequence: the last number used; None before the first batch.
    """

    published: int
    dropped: int
    replayed: int
    replay_requests: int
    malformed_requests: int
    published_bytes: int
    queued: int
    last_sequence: int | None


class ZmqPublisher:
    """A PUB socket for live batches and a ROUTER socket for replays, served by a thread of their own.

    `publish` never waits for a consumer: batches go through a bounded queue, and one that finds it full
    is dropped and counted. Its number is used up, so that consumers see the gap. Thread-safe.

    Args:
        endpoint: the live socket's address for rank 0. Port 0 or `*` binds a free port.
        replay_endpoint: address of the replay socket for rank 0, always bound; None: no replays.
        snapshot: reserved for a snapshot service; None.
        topic: what batches are published under.
        buffer_steps: how many batches can be repeated.
        hwm: messages queued for one slow consumer before ZMQ drops for it.
        max_queue_size: batches that wait for the publisher's thread.
        dp_rank: data-parallel rank: both endpoints are moved by `rank_endpoint`, and batches without a
            rank get it.
        bind: whether the live socket binds; None decides as SGLang and vLLM do (see `binds`).
        dialect: how batches given as `KVEventBatch` are encoded.
        linger_s: how long `close` waits for consumers to take what was published.

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
        snapshot: None = None,
        topic: str = "",
        buffer_steps: int = 10_000,
        hwm: int = 100_000,
        max_queue_size: int = 100_000,
        dp_rank: int = 0,
        bind: bool | None = None,
        dialect: Dialect = "sglang",
        linger_s: float = 1.0,
    ) -> None:
        if snapshot is not None:
            raise ConfigError("snapshot: reserved for a later version; leave it None")
        for name, value in (("buffer_steps", buffer_steps), ("hwm", hwm)):
            if value < 0:
                raise ConfigError(f"{name}: expected 0 or more, got {value}")
        if max_queue_size < 1:
            raise ConfigError(f"max_queue_size: expected 1 or more, got {max_queue_size}")
        live = rank_endpoint(endpoint, dp_rank)
        replay = None if replay_endpoint is None else rank_endpoint(replay_endpoint, dp_rank)
        self._topic = topic.encode()
        self._dp_rank = dp_rank
        self._dialect = dialect
        self._max_queue_size = max_queue_size
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._lock = threading.Lock()
        self._queue: deque[tuple[int, bytes]] = deque()
        self._next_sequence = 0
        self._closing = False
        self._published = self._published_bytes = self._dropped = 0
        self._replayed = self._replay_requests = self._malformed_requests = 0

        self._context = new_context()
        self._pub = open_socket(zmq.PUB, live, self._context)
        self._router: ZmqSocket | None = None
        try:
            self._pub.setsockopt(zmq.SNDHWM, hwm)
            self._pub.setsockopt(zmq.LINGER, int(linger_s * 1000))
            open_live = bind_socket if (binds(live) if bind is None else bind) else connect_socket
            self.endpoint = open_live(self._pub, live)
            self.replay_endpoint: str | None = None
            if replay is not None:
                self._router = open_socket(zmq.ROUTER, replay, self._context)
                # ROUTER drops what does not fit; half of the mark is free at any rate once a consumer has read.
                self._router.setsockopt(zmq.SNDHWM, 2 * (buffer_steps + 1))
                self._router.setsockopt(zmq.LINGER, int(linger_s * 1000))
                self.replay_endpoint = bind_socket(self._router, replay)
        except BaseException:
            self._close_sockets(linger=0)
            raise
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._run, name=f"kvevents-publisher-{self.endpoint}", daemon=True)
        self._thread.start()

    def publish(self, batch: KVEventBatch | bytes | bytearray | memoryview, /) -> int:
        """Queues a batch and returns the sequence number it has used; never waits.

        Args:
            batch: a batch, encoded here, or one that is encoded already. A queue that is full drops it
                (see `stats`).

        Raises:
            TransportError: the publisher is closed.
        """
        if isinstance(batch, KVEventBatch):
            payload = self._encode(batch)
        else:
            payload = batch if isinstance(batch, bytes) else bytes(memoryview(batch))
        with self._lock:
            if self._closing:
                raise TransportError(f"publisher at {self.endpoint} is closed")
            sequence = self._next_sequence
            self._next_sequence += 1
            if len(self._queue) >= self._max_queue_size:
                self._dropped += 1
                return sequence
            self._queue.append((sequence, payload))
            is_first = len(self._queue) == 1
        if is_first:
            self._wakeup.set()
        return sequence

    def stats(self) -> PublisherStats:
        """Counters, consistent at one moment."""
        with self._lock:
            return PublisherStats(
                published=self._published,
                dropped=self._dropped,
                replayed=self._replayed,
                replay_requests=self._replay_requests,
                malformed_requests=self._malformed_requests,
                published_bytes=self._published_bytes,
                queued=len(self._queue),
                last_sequence=self._next_sequence - 1 if self._next_sequence else None,
            )

    def close(self) -> None:
        """Sends what is queued, gives consumers `linger_s` to take it, and closes the sockets; idempotent."""
        with self._lock:
            self._closing = True
        self._wakeup.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encode(self, batch: KVEventBatch) -> bytes:
        if batch.attn_dp_rank is None:
            batch = msgspec.structs.replace(batch, attn_dp_rank=self._dp_rank)
        return encode_batch(batch, dialect=self._dialect)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wakeup, zmq.POLLIN)
        if self._router is not None:
            poller.register(self._router, zmq.POLLIN)
        try:
            while True:
                closing = self._closing  # read first: what was queued before it was set is still sent
                sent = self._send_queued()
                served = self._serve_replay()
                if closing and not sent:
                    break
                if sent or served:
                    continue
                poller.poll()
                self._wakeup.clear()
        finally:
            self._close_sockets()
            self._wakeup.close()

    def _send_queued(self) -> int:
        """Sends some of the queue, so that replays get their turn; how many were sent."""
        with self._lock:
            batches = [self._queue.popleft() for _ in range(min(len(self._queue), _BATCHES_A_TURN))]
        for sequence, payload in batches:
            self._pub.send_multipart((self._topic, sequence_frame(sequence), payload))
            self._buffer.append((sequence, payload))
        with self._lock:
            self._published += len(batches)
            self._published_bytes += sum(len(payload) for _, payload in batches)
        return len(batches)

    def _serve_replay(self) -> bool:
        """Answers one message at the replay socket, so that whoever asks without end holds up nothing that is live."""
        router = self._router
        if router is None:
            return False
        try:
            frames = router.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        start = read_request(frames)
        if start is None:
            with self._lock:
                self._malformed_requests += 1
            return True
        wanted: list[tuple[int, bytes]] = []
        for batch in reversed(self._buffer):
            if batch[0] < start:
                break
            wanted.append(batch)
        with self._lock:
            self._replayed += len(wanted)
            self._replay_requests += 1
        for sequence, payload in reversed(wanted):
            router.send_multipart((frames[0], b"", self._topic, sequence_frame(sequence), payload))
        router.send_multipart((frames[0], b"", *END_MARK))
        return True

    def _close_sockets(self, linger: int | None = None) -> None:
        self._pub.close(linger)
        if self._router is not None:
            self._router.close(linger)
        self._context.term()
