"""The sources of a fleet, and who is told of them."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from kvevents.errors import ConfigError
from kvevents.transport.jetstream.names import Names
from kvevents.transport.jetstream.registry import WorkerRecord
from kvevents.transport.jetstream.source import Circumstances, LogSource
from kvevents.transport.sink import EventSink, register
from kvevents.transport.state import SourceState, State
from kvevents.transport.subscriber import OnState

_log = logging.getLogger(__name__)


class Fleet:
    """Every worker's rank that the log or the registry has named.

    One thread changes it; any may ask.

    Args:
        names: the fleet's.
        sink: takes the batches, and is told of workers and states if it can be.
        on_state: told of states too.
        on_change: called after each change of a state.
        max_batch_bytes: see `LogSource`.

    Attributes:
        errors: how often `on_state` or the sink, told something, raised; the first time is logged.
    """

    def __init__(
        self,
        names: Names,
        sink: EventSink,
        on_state: OnState | None,
        on_change: Callable[[], None],
        max_batch_bytes: int,
    ) -> None:
        self.errors = 0
        self._names = names
        self._sink = sink
        self._on_state = on_state
        self._on_change = on_change
        self._max_batch_bytes = max_batch_bytes
        self._sources: dict[tuple[str, int], LogSource] = {}
        self._by_subject: dict[str, LogSource] = {}

    def __iter__(self) -> Iterator[LogSource]:
        """The sources; they may change meanwhile."""
        return iter(list(self._sources.values()))

    def __len__(self) -> int:
        return len(self._sources)

    def find(self, worker_id: str, dp_rank: int | None) -> LogSource:
        """A worker's rank; None: its only one.

        Raises:
            ConfigError: it is not known.
        """
        ranks = {source.rank: source for source in self if source.worker == worker_id}
        if dp_rank is None and len(ranks) == 1:
            return next(iter(ranks.values()))
        if dp_rank is None or dp_rank not in ranks:
            known = ", ".join(f"{source.worker} rank {source.rank}" for source in self) or "none"
            raise ConfigError(f"fleet {self._names.fleet!r} has no {worker_id!r}, rank {dp_rank}; known: {known}")
        return ranks[dp_rank]

    def states(self) -> dict[tuple[str, int], SourceState]:
        """What is known about every source."""
        return {(source.worker, source.rank): source.state() for source in self}

    def is_live(self, at_least: int) -> bool:
        """Whether so many sources are not lost, and all of those are live, and whoever is told knows it."""
        standing = [source.told for source in self if source.told is not State.LOST]
        return len(standing) >= at_least and all(state is State.LIVE for state in standing)

    def records(self) -> list[WorkerRecord]:
        """The records that hold."""
        now = time.monotonic()
        return [source.record for source in self if source.record is not None and now < source.lease_until]

    def get(self, worker: str, rank: int) -> LogSource:
        """A source, made on first sight."""
        source = self._sources.get((worker, rank))
        if source is None:
            source = LogSource(worker, rank, self._sink, self._tell, self._max_batch_bytes)
            self._sources[worker, rank] = source
        return source

    def at(self, subject: str) -> LogSource:
        """The source that publishes there, or has its record there.

        Raises:
            WireError: it is no subject of ours.
        """
        source = self._by_subject.get(subject)
        if source is None:
            source = self._by_subject[subject] = self.get(*Names.source(subject))
        return source

    def drop(self, source: LogSource) -> None:
        """Forgets that it ever was."""
        del self._sources[source.worker, source.rank]
        self._by_subject = {subject: other for subject, other in self._by_subject.items() if other is not source}

    def renew(self, source: LogSource, record: WorkerRecord | None) -> None:
        """The registry has a record, or has it no more."""
        if record is None:
            source.lease_until, source.has_left = 0.0, True
        else:
            if source.record is None:
                self._register(record)
            source.has_left = False
            source.lease_until = time.monotonic() + record.lease_s
        source.record = record

    def extend_leases(self) -> None:
        """The broker was away, and it was not the workers' doing."""
        now = time.monotonic()
        for source in self:
            if source.record is not None and source.gone_since is None:
                source.lease_until = now + source.record.lease_s

    def show(self, around: Circumstances) -> None:
        """Moves every source to its state."""
        for source in self:
            source.show(around)

    def _register(self, record: WorkerRecord) -> None:
        with self._counting_errors("the sink's add_worker"):
            register(
                self._sink,
                record.worker,
                block_size=record.block_size or None,
                residency=record.residency,
                groups=record.groups,
            )

    def _tell(self, source: LogSource) -> None:
        state = source.state()
        set_state: Callable[..., object] | None = getattr(self._sink, "set_state", None)
        if set_state is not None:
            with self._counting_errors("the sink's set_state"):
                set_state(source.worker, source.rank, str(state.state))
        if self._on_state is not None:
            with self._counting_errors("on_state"):
                self._on_state(source.worker, source.rank, state)
        source.told = state.state
        self._on_change()

    @contextlib.contextmanager
    def _counting_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.errors += 1
            if self.errors == 1:
                _log.exception("%s failed; later failures are only counted", what)
