"""Publishes batches of events into a fleet's durable log."""

import asyncio
import contextlib
import secrets
import time
from typing import Self

import msgspec
import nats.errors
from nats.aio.msg import Msg

from kvevents.errors import ConfigError, TransportError
from kvevents.events import KVEventBatch
from kvevents.index import GroupSpec
from kvevents.transport.jetstream.bell import Bell
from kvevents.transport.jetstream.broker import Broker, BrokerStatus, must_connect
from kvevents.transport.jetstream.connection import Connection
from kvevents.transport.jetstream.names import MESSAGE_ID, MessageId
from kvevents.transport.jetstream.outbox import Outbox
from kvevents.transport.jetstream.registry import WorkerRecord, read_acknowledgement, renew, withdraw
from kvevents.transport.jetstream.settings import JetStreamSettings
from kvevents.transport.jetstream.store import ensure_stores, read_message_id, read_stream
from kvevents.transport.source import Residency
from kvevents.wire import Dialect, encode_batch

_WINDOW = 512
_HEADER_ROOM = 1_024
_RENEWALS_A_LEASE = 3
_TOO_LARGE = {10054}


class JetStreamPublisherStats(msgspec.Struct, frozen=True):
    """What a publisher did so far.

    Attributes:
        published: batches that the broker has acknowledged.
        published_bytes: their payloads.
        dropped: batches that found the queue full, or that the broker refused for good; each has used up its number.
        resent: batches sent once more after a connection broke.
        duplicates: messages that the broker had already.
        queued: batches that wait to be sent.
        in_flight: batches sent and not acknowledged yet.
        last_sequence: the last number used; None before the first batch.
        incarnation: of this publisher.
        broker: how the connection stands.
    """

    published: int
    published_bytes: int
    dropped: int
    resent: int
    duplicates: int
    queued: int
    in_flight: int
    last_sequence: int | None
    incarnation: str
    broker: BrokerStatus


class JetStreamPublisher:
    """One worker's rank in a fleet's log. Thread-safe.

    `publish` never waits: batches go through a bounded queue to a thread of the publisher's own, which sends them,
    waits for the broker's acknowledgements, and sends again what the broker does not have after a connection broke
    or the broker was restarted. A batch that finds the queue full is dropped and counted; its number is used up, so
    that consumers see the gap. A broker that is not there yet, or no more, is tried again for ever.

    Args:
        settings: the broker and the fleet.
        worker_id: the worker's name.
        dp_rank: data-parallel rank; batches without a rank get it.
        max_queue_size: batches that wait for the broker.
        max_queue_bytes: the same in bytes.
        keep_batches: acknowledged batches kept in case the broker loses its last ones.
        keep_bytes: the same in bytes.
        dialect: how batches given as `KVEventBatch` are encoded.
        block_size: tokens in a block of the worker's events, for consumers; None: not said.
        residency: how its blocks are counted, as in `Source`.
        groups: the KV cache groups of a hybrid model, as in `Source`.
        url: where the worker takes requests, for routers; None: not said.
        linger_s: how long `close` waits for the broker to take what is queued.

    Raises:
        ConfigError: a setting that cannot work.
    """

    def __init__(
        self,
        settings: JetStreamSettings,
        worker_id: str,
        *,
        dp_rank: int = 0,
        max_queue_size: int = 100_000,
        max_queue_bytes: int = 256 << 20,
        keep_batches: int = 4_096,
        keep_bytes: int = 32 << 20,
        dialect: Dialect = "sglang",
        block_size: int | None = None,
        residency: Residency = "counted",
        groups: tuple[GroupSpec, ...] = (),
        url: str | None = None,
        linger_s: float = 5.0,
    ) -> None:
        if not worker_id:
            raise ConfigError("worker_id: expected a name, got an empty one")
        for name, value in (("max_queue_size", max_queue_size), ("max_queue_bytes", max_queue_bytes)):
            if value < 1:
                raise ConfigError(f"{name}: expected 1 or more, got {value}")
        if dp_rank < 0:
            raise ConfigError(f"dp_rank: expected 0 or more, got {dp_rank}")
        self._settings = settings
        self._names = settings.names
        self._subject = self._names.subject(worker_id, dp_rank)
        self._record = WorkerRecord(
            worker_id,
            dp_rank,
            secrets.token_hex(8),
            settings.lease_s,
            block_size=block_size,
            residency=residency,
            groups=groups,
            url=url,
        )
        self._dialect = dialect
        self._linger_s = linger_s
        self._outbox = Outbox(
            max_batches=max_queue_size,
            max_bytes=max_queue_bytes,
            keep_batches=keep_batches,
            keep_bytes=keep_bytes,
        )
        self._closing = False
        self._published = self._published_bytes = self._resent = self._duplicates = 0
        # The loop's own.
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._parts: dict[int, int] = {}  # parts of a batch in flight that are not acknowledged
        self._failed: set[int] = set()  # batches that the broker did not take, this time
        self._position = 0
        self._trouble: TransportError | None = None
        self._heard = 0.0
        self._broker = Broker(
            f"kvevents-jetstream-{worker_id}-{dp_rank}",
            settings,
            self._serve,
            has_work=lambda: not self._outbox.is_settled,
        )
        self._bell = Bell(lambda: self._broker.call_soon(self._wake.set), "kvevents-jetstream-bell")
        self._broker.start()

    @property
    def worker_id(self) -> str:
        """The worker's name."""
        return self._record.worker

    def publish(self, batch: KVEventBatch | bytes | bytearray | memoryview, /) -> int:
        """Queues a batch and returns the sequence number it has used; never waits.

        Args:
            batch: a batch, encoded here, or one that is encoded already. A queue that is full drops it (see `stats`).

        Raises:
            TransportError: the publisher is closed.
        """
        if isinstance(batch, KVEventBatch):
            if batch.attn_dp_rank is None:
                batch = msgspec.structs.replace(batch, attn_dp_rank=self._record.rank)
            payload = encode_batch(batch, dialect=self._dialect)
        else:
            payload = batch if isinstance(batch, bytes) else bytes(memoryview(batch))
        if self._closing:
            raise TransportError(f"the publisher of {self._record.worker!r} is closed")
        sequence, may_sleep = self._outbox.put(payload)
        if may_sleep:
            self._bell.ring()
        return sequence

    def wait_ready(self, timeout: float | None = None) -> None:
        """Waits until the broker has taken everything queued so far.

        Raises:
            TransportError: it has not within `timeout` seconds; the message says why.
        """
        goal = self._outbox.last
        must_connect(self._broker, lambda: self._is_settled(goal), timeout, f"worker {self._record.worker!r}")

    def stats(self) -> JetStreamPublisherStats:
        """Counters, and how the connection stands."""
        outbox = self._outbox
        return JetStreamPublisherStats(
            published=self._published,
            published_bytes=self._published_bytes,
            dropped=outbox.dropped,
            resent=self._resent,
            duplicates=self._duplicates,
            queued=outbox.waiting,
            in_flight=outbox.in_flight,
            last_sequence=outbox.last,
            incarnation=self._record.incarnation,
            broker=self._broker.status,
        )

    def close(self) -> None:
        """Gives the broker `linger_s` to take what is queued, says goodbye in the registry, and ends; idempotent."""
        self._closing = True
        self._broker.call_soon(self._wake.set)
        self._broker.stop(self._linger_s)
        self._bell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_settled(self, goal: int | None) -> bool:
        settled = self._outbox.settled
        return self._broker.status.connected and (goal is None or (settled is not None and settled >= goal))

    # The loop's part.

    async def _serve(self, connection: Connection) -> None:
        await ensure_stores(connection, self._settings)
        self._trouble = None
        self._parts.clear()
        self._resent += self._outbox.rewind(await self._find_last(connection), self._failed)
        self._failed.clear()
        self._position = (await read_stream(connection, self._names.stream)).last  # the broker may have lost some
        await self._renew(connection)
        inbox = connection.client.new_inbox()
        await connection.client.subscribe(f"{inbox}.*.*", cb=self._on_acknowledgement)
        renewing = asyncio.create_task(self._keep_renewing(connection))
        try:
            await self._send_all(connection, inbox)
        finally:
            renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewing
        await withdraw(connection, self._names, self._record)

    async def _send_all(self, connection: Connection, inbox: str) -> None:
        """Sends what is queued; returns when there is nothing more and the publisher is closing."""
        outbox = self._outbox
        self._heard = time.monotonic()
        while True:
            self._wake.clear()
            while outbox.in_flight < _WINDOW and (batch := outbox.take()) is not None:
                await self._send(connection, inbox, batch.sequence, batch.payload)
            if self._trouble is not None:
                raise self._trouble
            if outbox.is_settled:
                self._broker.tell()  # whoever waits until everything is with the broker
                if self._closing:
                    return
                if outbox.dropped != self._record.dropped:
                    self._hurry.set()  # nothing may follow by which the gap would be seen
            if not outbox.in_flight:
                await self._wake.wait()
                self._heard = time.monotonic()
                continue
            patience = self._heard + self._settings.connect_timeout_s - time.monotonic()
            try:
                await asyncio.wait_for(self._wake.wait(), max(0.0, patience))
            except TimeoutError:
                if time.monotonic() - self._heard >= self._settings.connect_timeout_s:
                    raise TransportError(
                        f"{connection.server}: {outbox.in_flight} batches are not acknowledged for"
                        f" {self._settings.connect_timeout_s:g} s; {connection.complaint or 'the broker is overloaded'}"
                    ) from None

    async def _send(self, connection: Connection, inbox: str, sequence: int, payload: bytes) -> None:
        room = connection.client.max_payload - _HEADER_ROOM
        parts = max(1, -(-len(payload) // room))
        self._parts[sequence] = parts
        for part in range(parts):
            message_id = MessageId(self._record.incarnation, sequence, part, parts)
            try:
                await connection.client.publish(
                    self._subject,
                    payload if parts == 1 else payload[part * room : (part + 1) * room],
                    reply=f"{inbox}.{sequence}.{part}",
                    headers={MESSAGE_ID: str(message_id)},
                )
            except (nats.errors.Error, OSError) as error:
                raise TransportError(f"{connection.server}: batch {sequence} could not be sent: {error!r}") from None

    async def _on_acknowledgement(self, message: Msg) -> None:
        self._heard = time.monotonic()
        sequence = int(message.subject.rsplit(".", 2)[1])
        if message.headers and "Status" in message.headers:
            self._give_up(TransportError("the broker has no stream for the batches any more"))
            return
        said = read_acknowledgement(message.data)
        if said.error is not None:
            if said.error.get("err_code") in _TOO_LARGE:
                self._outbox.refuse(sequence)
                self._parts.pop(sequence, None)
            else:
                self._failed.add(sequence)
                self._give_up(TransportError(f"the broker did not take batch {sequence}: {said.error['description']}"))
            self._wake.set()
            return
        self._duplicates += said.duplicate
        self._position = max(self._position, said.seq)
        left = self._parts.get(sequence, 0) - 1
        if left > 0:
            self._parts[sequence] = left
            return
        self._parts.pop(sequence, None)
        self._take_acknowledged(sequence)

    def _take_acknowledged(self, sequence: int) -> None:
        size = self._outbox.acknowledge(sequence)
        if size is not None:
            self._published += 1
            self._published_bytes += size
        if self._outbox.in_flight <= _WINDOW // 2:
            self._broker.tell()
            if self._outbox.waiting or not self._outbox.in_flight:
                self._wake.set()

    def _give_up(self, trouble: TransportError) -> None:
        self._trouble = self._trouble or trouble
        self._wake.set()

    async def _find_last(self, connection: Connection) -> int | None:
        """The last batch of ours that the broker has in full; None if it has none, or the last one is not ours."""
        last = await read_message_id(connection, self._names.stream, {"last_by_subj": self._subject})
        if last is None or last.incarnation != self._record.incarnation:
            return None
        if last.part == last.parts - 1:
            return last.sequence
        return last.sequence - 1 if last.sequence else None

    async def _keep_renewing(self, connection: Connection) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), self._settings.lease_s / _RENEWALS_A_LEASE)
            self._hurry.clear()
            try:
                await self._renew(connection)
            except TransportError as error:
                self._give_up(error)
                return

    async def _renew(self, connection: Connection) -> None:
        self._record = msgspec.structs.replace(
            self._record,
            settled=self._outbox.settled,
            position=self._position,
            dropped=self._outbox.dropped,
        )
        await renew(connection, self._names, self._record)
