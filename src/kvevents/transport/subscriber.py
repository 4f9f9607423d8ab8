"""Follows the events of many workers and keeps a sink, such as an index, up to date."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Self, TypeAlias

from kvevents.errors import ConfigError, TransportError
from kvevents.transport.link import OnArrival, SourceLink
from kvevents.transport.picture import Position
from kvevents.transport.poll_loop import Outcome, PollLoop
from kvevents.transport.settings import DeliverySettings
from kvevents.transport.sink import EventSink, register
from kvevents.transport.sockets import new_context
from kvevents.transport.source import Source
from kvevents.transport.state import SourceState, State

_log = logging.getLogger(__name__)

OnState: TypeAlias = Callable[[str, int | None, SourceState], object]
_Key: TypeAlias = tuple[str, int | None]


class Subscriber:
    """Receives every source's batches in order, each once, repairs what it can, and says what it could not.

    One thread of its own serves all sources; it calls the sink and `on_state`. A replay endpoint lets a
    source begin in the middle of an engine's life, mends gaps, and finds restarts and lost last batches.
    Thread-safe; nothing that a sink or `on_state` raises ends the thread.

    Args:
        sources: where to begin; more can be added.
        sink: takes the batches; an index is also told how a worker is to be registered, and each source's state, so
            that its matches report it.
        on_state: called as `on_state(worker_id, dp_rank, state)` after every change.
        settings: times and limits.
        on_arrival: for whoever records what comes: called before batches that have come are judged (see `OnArrival`).

    Raises:
        ConfigError: two sources for one worker and rank.
        TransportError: a source's socket cannot be opened, such as an endpoint to bind that is in use.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        sink: EventSink,
        *,
        on_state: OnState | None = None,
        settings: DeliverySettings | None = None,
        on_arrival: OnArrival | None = None,
    ) -> None:
        self._sink = sink
        self._on_arrival = on_arrival
        self._on_state = on_state
        self._settings = settings or DeliverySettings()
        self._loop = PollLoop()
        self._context = new_context()
        self._changed = threading.Condition()
        self._links: dict[_Key, SourceLink] = {}
        self._started: list[SourceLink] = []  # the thread's own
        self._closing = False
        self._state_errors = 0
        self._thread = threading.Thread(target=self._run, name="kvevents-subscriber", daemon=True)
        self._thread.start()
        try:
            for source in sources:
                self.add_source(source)
        except BaseException:
            self.close()
            raise

    @property
    def state_errors(self) -> int:
        """How often `on_state` (or the sink, told a state) raised; the first time is logged."""
        return self._state_errors

    def add_source(self, source: Source, *, position: Position | None = None) -> None:
        """Begins to follow a source.

        Args:
            source: whom to follow.
            position: how far it was followed before, if the sink still has all of that. Where the source is another one
                by now, or cannot say what came since, that is cleared.

        Raises:
            ConfigError: the worker and rank are followed already, or the worker both by rank and as a whole, or an
                index holds blocks of the worker under other settings than the source's.
            TransportError: its socket cannot be opened, or the subscriber is closed.
        """
        key = (source.worker_id, source.dp_rank)
        with self._changed:
            self._check_open()
            ranks = [rank for worker, rank in self._links if worker == source.worker_id]
            if source.dp_rank in ranks or (ranks and None in {source.dp_rank, *ranks}):
                raise ConfigError(
                    f"worker {source.worker_id!r}: rank {source.dp_rank} is added to ranks {ranks};"
                    " give each source of a worker a dp_rank of its own, or remove the old one first"
                )
            link = SourceLink(
                source,
                self._sink,
                loop=self._loop,
                context=self._context,
                settings=self._settings,
                on_change=self._tell,
                on_arrival=self._on_arrival,
                position=position,
            )
            try:
                register(
                    self._sink,
                    source.worker_id,
                    block_size=source.block_size,
                    residency=source.residency,
                    groups=source.groups,
                )
            except BaseException:
                link.close(forget=False)
                raise
            self._links[key] = link
            self._loop.call_soon(lambda: self._start(link))

    def remove_source(self, worker_id: str, dp_rank: int | None = None) -> None:
        """Stops to follow a source; the sink drops what it held before this returns.

        Raises:
            ConfigError: there is no such source.
        """
        with self._changed:
            self._check_open()
            link = self._links.pop(self._key(worker_id, dp_rank))
            stop = Outcome(lambda: self._stop(link))
            self._loop.call_soon(stop)
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            stop.wait()

    def state(self, worker_id: str, dp_rank: int | None = None) -> SourceState:
        """What is known about a source.

        Args:
            worker_id: the worker.
            dp_rank: its rank; a source without a rank answers for every rank of its worker, and a worker's
                only source for None.

        Raises:
            ConfigError: there is no such source.
        """
        with self._changed:
            return self._links[self._key(worker_id, dp_rank)].state()

    def states(self) -> dict[tuple[str, int | None], SourceState]:
        """What is known about every source, by worker id and rank."""
        with self._changed:
            return {key: link.state() for key, link in self._links.items()}

    def endpoint(self, worker_id: str, dp_rank: int | None = None) -> str:
        """The live address in use, with the real port of a source that binds a free one.

        Raises:
            ConfigError: there is no such source.
        """
        with self._changed:
            return self._links[self._key(worker_id, dp_rank)].endpoint

    def wait_live(self, timeout: float | None = None) -> bool:
        """Waits until every source is live; False if that was not so within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(link.state().state is State.LIVE for link in self._links.values()), timeout
            )

    def close(self) -> None:
        """Stops to follow everything; the sink keeps what it has. Idempotent."""
        with self._changed:
            self._closing = True
        with contextlib.suppress(OSError):
            self._loop.call_soon(lambda: None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closing:
            raise TransportError("the subscriber is closed")

    def _key(self, worker_id: str, dp_rank: int | None) -> _Key:
        ranks = [rank for worker, rank in self._links if worker == worker_id]
        if dp_rank in ranks:
            return worker_id, dp_rank
        if len(ranks) == 1 and (dp_rank is None or None in ranks):
            return worker_id, ranks[0]
        raise ConfigError(
            f"no source for worker {worker_id!r}, rank {dp_rank}; known are {sorted(map(str, self._links))}"
        )

    # The thread's part.

    def _run(self) -> None:
        try:
            while not self._closing:
                due = self._next_deadline()
                self._loop.turn(None if due is None else due - time.monotonic())
                now = time.monotonic()
                for link in list(self._started) if due is not None and now >= due else ():
                    deadline = link.deadline()
                    if deadline is not None and now >= deadline:
                        link.tick()
        finally:
            self._loop.close()
            for link in self._started:
                link.close(forget=False)
            self._context.term()

    def _next_deadline(self) -> float | None:
        deadlines = [deadline for link in self._started if (deadline := link.deadline()) is not None]
        return min(deadlines, default=None)

    def _start(self, link: SourceLink) -> None:
        self._started.append(link)
        self._tell_sink(link.source, link.state())
        link.start()

    def _stop(self, link: SourceLink) -> None:
        self._started.remove(link)
        link.close(forget=True)

    def _tell(self, link: SourceLink) -> None:
        state = link.state()
        self._tell_sink(link.source, state)
        with self._changed:
            self._changed.notify_all()
        if self._on_state is not None:
            with self._counting_errors("on_state"):
                self._on_state(link.source.worker_id, link.source.dp_rank, state)

    def _tell_sink(self, source: Source, state: SourceState) -> None:
        set_state = getattr(self._sink, "set_state", None)
        if set_state is not None:
            with self._counting_errors("the sink's set_state"):
                set_state(source.worker_id, source.dp_rank, str(state.state))

    @contextlib.contextmanager
    def _counting_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._state_errors += 1
            if self._state_errors == 1:
                _log.exception("%s failed; later failures are only counted", what)
