"""Whose events feed the index, and how far the picture of each worker can be trusted."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from kvevents.errors import ConfigError, KVEventsError
from kvevents.index import PrefixIndex
from kvevents.server.configuration import Settings
from kvevents.server.fleet.jetstream import FleetLog
from kvevents.server.fleet.worker import Worker
from kvevents.transport import Source, SourceState, State
from kvevents.transport.state import Reason, SourceCounters

_log = logging.getLogger("kvevents.server")

DEFAULT_BLOCK_SIZE = 64
SMALLEST_BLOCK_SIZE = 16
"""Smaller blocks are indexed in multiples: matching stays cheap, and little of a prompt is lost to rounding."""


class EventReceiver(Protocol):
    """What the fleet needs of `kvevents.transport.Subscriber`, called with a sink, `on_state` and `settings`."""

    def add_source(self, source: Source) -> None: ...
    def remove_source(self, worker_id: str, dp_rank: int | None = None) -> None: ...
    def state(self, worker_id: str, dp_rank: int | None = None) -> SourceState: ...
    def close(self) -> None: ...


Discover: TypeAlias = Callable[..., Sequence[Source]]
Subscribe: TypeAlias = Callable[..., EventReceiver]


class EventSources:
    """Keeps index and receiver in step with the workers' sources. Lives on one event loop.

    Args:
        settings: of the service.
        subscribe: makes what receives from sources into the index.
        log: where all events come from, if not from sockets.
        on_index: told of each index that takes the place of the one before.
        on_source: told of each rank of a worker how far its events can be trusted; None where there are none any more.

    Attributes:
        index: what is known of all workers.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        subscribe: Subscribe,
        log: FleetLog | None,
        on_index: Callable[[PrefixIndex], object],
        on_source: Callable[[str, int | None, State | None], object],
    ) -> None:
        self._block_size = settings.fleet.block_size
        self._delivery = settings.events.delivery
        self._subscribe = subscribe
        self._log = log
        self._on_index = on_index
        self._on_source = on_source
        self._receiver: EventReceiver | None = None
        self._distrusted: set[str] = set()  # read by the receiver's thread
        self._followed: set[str] = set()
        self.index = PrefixIndex(self._block_size or DEFAULT_BLOCK_SIZE)

    async def open(self) -> None:
        """Begin to read the log, if there is one, and take the index's block size from what it says."""
        if self._log is None:
            return
        self._receiver = await self._log.open(self.index, on_state=self._on_state)
        await self.fit(self._log.block_sizes())

    async def close(self) -> None:
        """Stop receiving. Idempotent."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            await asyncio.to_thread(receiver.close)

    async def fit(self, sizes: Iterable[int | None]) -> None:
        """Choose the index's block size while nothing is followed and none was set."""
        known = {size for size in sizes if size}
        if self._block_size is not None or self._followed or not known:
            return
        common = math.lcm(*known)
        block_size = common * -(-SMALLEST_BLOCK_SIZE // common)
        if block_size != self.index.block_size:
            await self.close()
            self.index = PrefixIndex(block_size)
            self._on_index(self.index)
            if self._log is not None:
                self._receiver = await self._log.open(self.index, on_state=self._on_state)

    async def follow(self, worker: Worker, sources: Sequence[Source]) -> None:
        """Receive a worker's events from these sources and no others; what it held before is forgotten.

        Raises:
            ConfigError: its blocks do not fit the index; then nothing of it is received.
            TransportError: a socket cannot be opened; then nothing of it is received.
        """
        await self.drop(worker)
        if not sources:
            return
        size = max((source.block_size for source in sources if source.block_size), default=None)
        if size is not None and self.index.block_size % size:
            raise ConfigError(
                f"its blocks have {size} tokens and those of the index {self.index.block_size}, which is no multiple: "
                f"start the router with --block-size {math.lcm(size, self.index.block_size)}"
            )
        try:
            self._add(worker, sources, size)
        except KVEventsError:
            await self.drop(worker)
            raise

    async def drop(self, worker: Worker) -> None:
        """Stop receiving a worker's events and forget what it held; a log goes on to say what it holds."""
        sources, worker.sources = worker.sources, ()
        worker.distrusted = None
        self._distrusted.discard(worker.id)
        self._followed.discard(worker.id)
        self._on_source(worker.id, None, None)
        if self._log is not None:
            return
        if self._receiver is not None:
            for source in sources:
                await asyncio.to_thread(self._receiver.remove_source, worker.id, source.dp_rank)
        self.index.remove_worker(worker.id)

    def states(self, worker: Worker) -> dict[int | None, SourceState]:
        """The state of each of a worker's sources, by rank."""
        states = {source.dp_rank: self._state(worker.id, source.dp_rank) for source in worker.sources}
        if worker.distrusted is None:
            return states
        return {
            rank: msgspec.structs.replace(state, state=State.DEGRADED, reason=worker.distrusted, code=Reason.DISTRUSTED)
            if state.state is State.LIVE
            else state
            for rank, state in states.items()
        }

    def distrust(self, worker: Worker, reason: str | None) -> None:
        """Weigh a worker's complete pictures like incomplete ones, for a reason; None: believe them again."""
        worker.distrusted = reason
        (self._distrusted.discard if reason is None else self._distrusted.add)(worker.id)
        self.tell(worker)

    def tell(self, worker: Worker) -> None:
        """Tell whoever weighs matches how far a worker's pictures are believed now."""
        for rank, state in self.states(worker).items():
            self._set_state(worker.id, rank, state.state)

    def _add(self, worker: Worker, sources: Sequence[Source], block_size: int | None) -> None:
        self._followed.add(worker.id)
        if self._log is not None:
            worker.sources = tuple(sources)
            return
        groups = dict(enumerate(sources[0].groups)) or None
        self.index.add_worker(worker.id, block_size=block_size, residency=sources[0].residency, groups=groups)
        if self._receiver is None:
            self._receiver = self._subscribe((), self.index, on_state=self._on_state, settings=self._delivery)
        for source in sources:
            self._set_state(worker.id, source.dp_rank, State.CONNECTING)
            self._receiver.add_source(source)
            worker.sources = (*worker.sources, source)

    def _state(self, worker_id: str, dp_rank: int | None) -> SourceState:
        if self._receiver is not None:
            try:
                return self._receiver.state(worker_id, dp_rank)
            except ConfigError as error:  # the log has forgotten it
                reason = str(error)
        else:
            reason = "nothing is received any more"
        return SourceState(State.LOST, reason, time.time(), SourceCounters(), Reason.LEFT)

    def _on_state(self, worker_id: str, dp_rank: int | None, state: SourceState) -> None:
        is_believed = worker_id not in self._distrusted
        told = state.state if is_believed or state.state is not State.LIVE else State.DEGRADED
        self._set_state(worker_id, dp_rank, told)

    def _set_state(self, worker_id: str, dp_rank: int | None, state: State) -> None:
        self.index.set_state(worker_id, dp_rank, state)
        self._on_source(worker_id, dp_rank, state)
