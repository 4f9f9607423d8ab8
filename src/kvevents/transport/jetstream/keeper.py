"""Puts the fleet's snapshot into an index, and saves new ones."""

import asyncio
import logging
import random
import time

from kvevents.errors import ConfigError, KVEventsError
from kvevents.transport.jetstream.connection import Connection
from kvevents.transport.jetstream.fleet import Fleet
from kvevents.transport.jetstream.log import LogPlace
from kvevents.transport.jetstream.settings import JetStreamSettings
from kvevents.transport.jetstream.snapshots import LogMark, SnapshotIndex, SnapshotStore, SourceMark, pack, unpack
from kvevents.transport.jetstream.source import LogSource
from kvevents.transport.jetstream.store import StreamFacts
from kvevents.transport.state import TRANSITIONS, Fault, Reason, State

_log = logging.getLogger(__name__)

_RECENT = 64


class SnapshotKeeper:
    """The index and the place in the log that it stands for belong together: `turn` is held while both are read.

    Args:
        settings: the broker and the fleet.
        index: what is restored and saved.
        fleet: whose sources stand where the index does.
        every_s: save a snapshot so often, unless another consumer has; None: only when told.
        turn: held by whoever changes the index.

    Attributes:
        saved: snapshots saved.
        problem: why the last one could not be used or saved; None if it could.
    """

    def __init__(
        self,
        settings: JetStreamSettings,
        index: SnapshotIndex,
        fleet: Fleet,
        *,
        every_s: float | None,
        turn: asyncio.Lock,
    ) -> None:
        self.saved = 0
        self.problem: str | None = None
        self._settings = settings
        self._index = index
        self._fleet = fleet
        self._every_s = every_s
        self._turn = turn
        self._saving: asyncio.Task[None] | None = None
        self._saved_position = 0
        # Consumers that start together save at different times.
        self._next_save = time.monotonic() + random.uniform(0, every_s or 0.0)  # noqa: S311 - no secret

    @property
    def saved_position(self) -> int:
        """The place in the log of the last snapshot used or saved."""
        return self._saved_position

    async def restore(self, connection: Connection, facts: StreamFacts, place: LogPlace) -> bool:
        """Puts the fleet's snapshot into the index, the fleet and `place`; False if there is none that fits.

        Args:
            connection: to the broker.
            facts: of the log as it is.
            place: what was read so far; a snapshot has to be newer.
        """
        self.problem = None
        try:
            data = await self._store(connection).load()
            if data is None:
                return False
            mark, image = unpack(data)
            found = LogPlace()
            found.set(mark.stream, mark.position, mark.recent)
            _check(mark, await found.find(connection, self._settings.names.stream, facts), place)
            self._index.restore(bytes(image))
        except KVEventsError as error:
            self.problem = str(error)
            _log.warning("the snapshot of fleet %s is not used: %s", self._settings.fleet, error)
            return False
        place.set(mark.stream, mark.position, mark.recent)
        self._saved_position = mark.position
        marked = {(source.worker, source.rank): source for source in mark.sources}
        for key in marked.keys() | self._fleet.states().keys():
            _place_source(self._fleet.get(*key), marked.get(key))
        return True

    def tick(self, connection: Connection, place: LogPlace) -> None:
        """Begins to save a snapshot if it is time."""
        now = time.monotonic()
        if self._every_s is None or now < self._next_save or self._saved_position >= place.position:
            return
        if self._saving is None or self._saving.done():
            self._next_save = now + self._every_s
            self._saving = asyncio.create_task(self._save_if_old(connection, place, self._every_s))

    async def save(self, connection: Connection, place: LogPlace) -> None:
        """Saves a snapshot as of now.

        Raises:
            TransportError: the broker does not take it.
            CapacityError: it is larger than the settings allow.
        """
        async with self._turn:
            sources = [_mark(source) for source in self._fleet]
            mark = LogMark(place.stream or "", place.position, place.recent(_RECENT), sources, time.time())
            image = self._index.snapshot()
        await self._store(connection).save(pack(mark, image))
        self._saved_position = mark.position
        self.saved += 1
        self.problem = None

    async def _save_if_old(self, connection: Connection, place: LogPlace, every_s: float) -> None:
        try:
            age = await self._store(connection).age()
            if age is None or age >= every_s / 2:  # else another consumer has
                await self.save(connection, place)
        except KVEventsError as error:
            if self.problem is None:
                _log.warning("no snapshot of fleet %s: %s", self._settings.fleet, error)
            self.problem = str(error)

    def _store(self, connection: Connection) -> SnapshotStore:
        return SnapshotStore(connection, self._settings, self._index.block_size)


def _check(mark: LogMark, found: int | None, read: LogPlace) -> None:
    if found != mark.position:
        raise ConfigError("it was taken of another log, or of batches that the broker has lost since")
    if read.stream == mark.stream and read.position >= mark.position:
        raise ConfigError("it is older than what was read already")


def _place_source(source: LogSource, mark: SourceMark | None) -> None:
    if mark is None:
        source.reset()
    else:
        source.restore(mark.incarnation, mark.last, _fault(mark), is_forgotten=mark.is_forgotten)


def _mark(source: LogSource) -> SourceMark:
    fault = None if source.fault is None else (str(source.fault.reason), source.fault.detail)
    return SourceMark(source.worker, source.rank, source.incarnation, source.last, fault, source.is_forgotten)


def _fault(mark: SourceMark) -> Fault | None:
    if mark.fault is None:
        return None
    name, detail = mark.fault
    known = {str(cause): cause for (_, cause), state in TRANSITIONS.items() if state is State.DEGRADED}
    return Fault(known.get(name, Reason.BATCH_MISSING), detail, mendable=False)  # it may be another version's
