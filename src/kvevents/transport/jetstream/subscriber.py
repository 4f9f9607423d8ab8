"""Follows a fleet's log and keeps a sink, such as an index, up to date."""

import asyncio
import contextlib
import logging
import time
from typing import Self

from kvevents.errors import ConfigError, WireError
from kvevents.transport.jetstream.broker import Broker, BrokerStatus, must_connect
from kvevents.transport.jetstream.connection import Connection
from kvevents.transport.jetstream.feed import Delivery, Feed
from kvevents.transport.jetstream.fleet import Fleet
from kvevents.transport.jetstream.keeper import SnapshotKeeper
from kvevents.transport.jetstream.log import LogPlace
from kvevents.transport.jetstream.names import MESSAGE_ID, MessageId
from kvevents.transport.jetstream.registry import WorkerRecord, read_record
from kvevents.transport.jetstream.settings import JetStreamSettings
from kvevents.transport.jetstream.snapshots import SnapshotIndex
from kvevents.transport.jetstream.source import Circumstances, LogSource
from kvevents.transport.jetstream.store import StreamFacts, ensure_stores, read_stream
from kvevents.transport.sink import EventSink
from kvevents.transport.state import SourceState
from kvevents.transport.subscriber import OnState

_log = logging.getLogger(__name__)

_TICK_S = 0.25


class JetStreamSubscriber:
    """Reads every worker's batches in order, each once, and says of each worker how far its picture can be trusted.

    Begins with the fleet's snapshot, if there is one and `snapshots` can take it, and the log after it; else with the
    whole log. The place in the log is part of what is held, not of the broker: a consumer that is started again begins
    from the last snapshot, and one whose broker was away goes on where it was. One thread of its own calls the sink and
    `on_state`; nothing that these raise ends it. Thread-safe.

    A worker whose lease has run out is `lost`; `grace_s` later the sink drops what it held. Should it come back, its
    part of the log is read again.

    Args:
        settings: the broker and the fleet.
        sink: takes the batches; an index is also told how a worker is to be registered, and each state.
        snapshots: the index that the sink is, if no one else feeds it: it is restored from the fleet's snapshot.
        snapshot_every_s: save a snapshot so often, unless another consumer has; None: never. Needs `snapshots`.
        grace_s: how long a lost worker's blocks are kept.
        on_state: called as `on_state(worker_id, dp_rank, state)` after every change.
        max_batch_bytes: a larger batch is given up, and its worker `degraded`.

    Raises:
        ConfigError: a setting that cannot work.
    """

    def __init__(
        self,
        settings: JetStreamSettings,
        sink: EventSink,
        *,
        snapshots: SnapshotIndex | None = None,
        snapshot_every_s: float | None = None,
        grace_s: float = 30.0,
        on_state: OnState | None = None,
        max_batch_bytes: int = 64 << 20,
    ) -> None:
        if snapshot_every_s is not None and (snapshots is None or snapshot_every_s <= 0):
            raise ConfigError(f"snapshot_every_s: {snapshot_every_s} needs an index as snapshots, and seconds above 0")
        if grace_s < 0 or max_batch_bytes < 1:
            raise ConfigError(f"expected grace_s from 0 and max_batch_bytes from 1, got {grace_s}, {max_batch_bytes}")
        self._settings = settings
        self._names = settings.names
        self._grace_s = grace_s
        self._broker = Broker(f"kvevents-jetstream-{settings.fleet}", settings, self._serve, on_status=self._on_status)
        self._fleet = Fleet(self._names, sink, on_state, self._broker.tell, max_batch_bytes)
        # The loop's own.
        self._place = LogPlace()
        self._goal = 0
        self._caught_up = False
        self._turn = asyncio.Lock()  # what one message does is not mixed with anything else
        self._keeper: SnapshotKeeper | None = None
        if snapshots is not None:
            self._keeper = SnapshotKeeper(settings, snapshots, self._fleet, every_s=snapshot_every_s, turn=self._turn)
        self._broker.start()

    @property
    def broker(self) -> BrokerStatus:
        """How the connection stands, and why there is none."""
        return self._broker.status

    @property
    def position(self) -> int:
        """The last message of the log whose effect is in the sink."""
        return self._place.position

    @property
    def callback_errors(self) -> int:
        """How often `on_state` (or the sink, told a state or a worker) raised; the first time is logged."""
        return self._fleet.errors

    @property
    def snapshots_saved(self) -> int:
        """Snapshots that this consumer has saved."""
        return 0 if self._keeper is None else self._keeper.saved

    @property
    def snapshot_problem(self) -> str | None:
        """Why the last snapshot could not be used or saved; None if it could."""
        return None if self._keeper is None else self._keeper.problem

    def workers(self) -> list[WorkerRecord]:
        """The records of the registry that hold."""
        return self._fleet.records()

    def state(self, worker_id: str, dp_rank: int | None = None) -> SourceState:
        """What is known about a worker's rank; None: about a worker's only rank.

        Raises:
            ConfigError: no such worker is known, or not yet (see `broker` and `wait_caught_up`).
        """
        return self._fleet.find(worker_id, dp_rank).state()

    def states(self) -> dict[tuple[str, int], SourceState]:
        """What is known about every source, by worker id and rank."""
        return self._fleet.states()

    def wait_caught_up(self, timeout: float | None = None) -> None:
        """Waits until everything was read that was in the log when the connection began.

        Raises:
            TransportError: that was not so within `timeout` seconds; the message says why.
        """
        must_connect(self._broker, lambda: self._caught_up, timeout, f"fleet {self._settings.fleet!r}")

    def wait_live(self, timeout: float | None = None, *, workers: int = 1) -> bool:
        """Waits until all sources that are not lost are live; False if that was not so within `timeout` seconds.

        Args:
            timeout: None: as long as it takes.
            workers: how many sources there have to be at least.
        """
        return self._broker.wait(lambda: self._caught_up and self._fleet.is_live(workers), timeout)

    def save_snapshot(self, timeout: float = 60.0) -> None:
        """Saves a snapshot now, for whoever comes later.

        Raises:
            ConfigError: there is no index to take it from.
            TransportError: the broker does not take it within `timeout` seconds, or is not reached.
            CapacityError: it is larger than the settings allow.
        """
        keeper = self._keeper
        if keeper is None:
            raise ConfigError("save_snapshot: no index was given as snapshots")
        self._broker.run(lambda connection: keeper.save(connection, self._place), timeout)

    def close(self) -> None:
        """Stops to follow; the sink keeps what it has. Idempotent."""
        self._broker.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The loop's part: one connection.

    async def _serve(self, connection: Connection) -> None:
        settings, names = self._settings, self._names
        await ensure_stores(connection, settings)
        facts = await read_stream(connection, names.stream)
        await self._find_place(connection, facts)
        self._goal = facts.last
        self._caught_up = False
        self._fleet.show(self._circumstances())
        known = asyncio.Event()

        async def take_record(delivery: Delivery) -> None:
            await self._take_record(delivery)
            if not delivery.pending:
                known.set()

        heartbeat_s = settings.heartbeat_s
        registry = await Feed.open(connection, f"KV_{names.registry}", take_record, heartbeat_s=heartbeat_s)
        if registry.pending:
            async with asyncio.timeout(settings.connect_timeout_s):
                await registry.wait(known)
        log = await Feed.open(
            connection,
            names.stream,
            lambda delivery: self._take_message(connection, delivery),
            heartbeat_s=heartbeat_s,
            start=self._place.position + 1,
        )
        async with self._turn:
            if not self._caught_up and self._place.position >= self._goal:
                self._catch_up()
        while True:
            await asyncio.sleep(_TICK_S)
            await registry.check()
            await log.check()
            await self._tick(connection)

    async def _find_place(self, connection: Connection, facts: StreamFacts) -> None:
        """Goes to where reading goes on: where it was, or the snapshot, or the log's beginning."""
        place, keeper = self._place, self._keeper
        if place.stream is not None:
            found = await place.find(connection, self._names.stream, facts)
            if found is not None:
                self._fleet.extend_leases()
                if found + 1 < facts.first:
                    if keeper is not None and await keeper.restore(connection, facts, place):
                        return
                    found = facts.first - 1  # what is missing shows in the batches' numbers
                place.position = found
                return
        if keeper is not None and await keeper.restore(connection, facts, place):
            return
        place.set(facts.created, facts.first - 1 if facts.first else 0, ())
        for source in self._fleet:
            source.reset()

    async def _take_message(self, connection: Connection, delivery: Delivery) -> None:
        async with self._turn:
            source = message_id = None
            try:
                source = self._fleet.at(delivery.subject)
                message_id = MessageId.read(delivery.headers.get(MESSAGE_ID))
            except WireError as error:
                _note_foreign(delivery, error)
                if source is not None:
                    source.take_malformed()
            if source is not None and message_id is not None:
                if self._caught_up:
                    source.lease_until = max(source.lease_until, time.monotonic() + self._settings.lease_s)
                if source.is_forgotten:
                    await self._read_again(connection, source, delivery.position)
                else:
                    source.take(message_id, delivery.data, replayed=not self._caught_up)
            self._place.note(delivery.position, message_id)
            if not self._caught_up:
                if self._place.position >= self._goal:
                    self._catch_up()
            elif source is not None:
                source.show(self._circumstances())

    async def _take_record(self, delivery: Delivery) -> None:
        async with self._turn:
            try:
                record = read_record(delivery.data, delivery.headers)
                source = self._fleet.at(delivery.subject)
            except WireError as error:
                _note_foreign(delivery, error)
                return
            self._fleet.renew(source, record)
            if self._caught_up:
                source.confirm(self._place.position)
                source.show(self._circumstances())

    async def _read_again(self, connection: Connection, source: LogSource, goal: int) -> None:
        """Reads a source's part of the log from the beginning up to the position `goal`."""
        done = asyncio.Event()
        source.reset()

        async def take(delivery: Delivery) -> None:
            if delivery.position <= goal:
                with contextlib.suppress(WireError):
                    source.take(MessageId.read(delivery.headers.get(MESSAGE_ID)), delivery.data, replayed=True)
            if delivery.position >= goal or not delivery.pending:
                done.set()

        subject = self._names.subject(source.worker, source.rank)
        feed = await Feed.open(
            connection, self._names.stream, take, heartbeat_s=self._settings.heartbeat_s, start=1, subject=subject
        )
        if feed.pending:
            await feed.wait(done)
        await feed.close()

    def _catch_up(self) -> None:
        self._caught_up = True
        for source in self._fleet:
            source.confirm(self._place.position)
        self._fleet.show(self._circumstances())
        self._broker.tell()

    async def _tick(self, connection: Connection) -> None:
        if not self._caught_up:
            return
        async with self._turn:
            around = self._circumstances()
            for source in self._fleet:
                source.confirm(self._place.position)
                source.show(around)
                if source.gone_since is None:
                    if source.is_forgotten:
                        await self._read_again(connection, source, self._place.position)
                elif not source.is_forgotten and (source.has_left or around.now - source.gone_since >= self._grace_s):
                    source.forget()
                elif around.now - source.gone_since > self._settings.max_age_s + self._grace_s:
                    self._fleet.drop(source)
        if self._keeper is not None:
            self._keeper.tick(connection, self._place)

    # Sources.

    def _circumstances(self) -> Circumstances:
        status = self._broker.status
        return Circumstances(None if status.connected else status.reason, self._caught_up, self._goal, time.monotonic())

    def _on_status(self) -> None:
        if not self._broker.status.connected:
            self._caught_up = False
            self._fleet.show(self._circumstances())


def _note_foreign(delivery: Delivery, error: WireError) -> None:
    _log.debug("message %d at %s is none of ours: %s", delivery.position, delivery.subject, error)
