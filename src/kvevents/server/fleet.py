"""The workers: who is there, who answers, and whose events feed the index."""

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeAlias

import aiohttp
import msgspec

from kvevents.errors import ConfigError, KVEventsError, TransportError
from kvevents.index import PrefixIndex
from kvevents.routing import NoWorkerError, Router
from kvevents.server.configuration import Settings, WorkerSettings
from kvevents.server.configuration.worker import worker_address
from kvevents.server.errors import HttpError
from kvevents.server.worker import Worker
from kvevents.transport import Source, SourceState, State, Subscriber, discover

_log = logging.getLogger("kvevents.server")

DEFAULT_BLOCK_SIZE = 64
SMALLEST_BLOCK_SIZE = 16
"""Smaller blocks are indexed in multiples: matching stays cheap, and little of a prompt is lost to rounding."""

PROBES_TO_GO_DOWN = 2
"""Late or wrong answers in a row that take a worker out; a refused connection does at once."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class EventReceiver(Protocol):
    """What the fleet needs of `kvevents.transport.Subscriber`, called with a sink and `on_state`."""

    def add_source(self, source: Source) -> None: ...
    def remove_source(self, worker_id: str, dp_rank: int | None = None) -> None: ...
    def state(self, worker_id: str, dp_rank: int | None = None) -> SourceState: ...
    def close(self) -> None: ...


Discover: TypeAlias = Callable[..., Sequence[Source]]
Subscribe: TypeAlias = Callable[..., EventReceiver]


class Fleet:
    """Keeps workers, router and index in step. Lives on one event loop.

    Args:
        settings: of the service.
        discover: finds a worker's event sources; blocking, called in a thread.
        subscribe: makes what receives from sources into the index.
    """

    def __init__(self, settings: Settings, *, discover: Discover = discover, subscribe: Subscribe = Subscriber) -> None:
        self._settings = settings
        self._discover = discover
        self._subscribe = subscribe
        self._receiver: EventReceiver | None = None
        self._workers: dict[str, Worker] = {}
        self._suspects: set[str] = set()
        self._wake = asyncio.Event()
        self._changing = asyncio.Lock()
        self._hosts = set(settings.worker_hosts)
        self.index = PrefixIndex(settings.fleet.block_size or DEFAULT_BLOCK_SIZE)
        self.router = Router(self.index, policy=settings.routing.policy)

    @property
    def workers(self) -> Sequence[Worker]:
        """All workers, in the order they came."""
        return list(self._workers.values())

    def __getitem__(self, worker_id: str) -> Worker:
        return self._workers[worker_id]

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._workers

    async def start(self, http: aiohttp.ClientSession) -> None:
        """Take in the configured workers and ask each once."""
        self._http = http
        for described in self._settings.workers:
            worker = Worker(described)
            self._workers[worker.id] = worker
        await self._look_at(self.workers)

    async def watch(self) -> None:
        """Ask every worker again and again, and a suspect at once. Runs until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._settings.fleet.probe_interval_s):
                    await self._wake.wait()
                due = [self._workers[name] for name in self._suspects if name in self._workers]
            except TimeoutError:
                due = list(self.workers)
            self._wake.clear()
            self._suspects.clear()
            try:
                await self._look_at(due)
            except Exception:
                _log.exception("a round of probes failed; the next one follows")

    async def close(self) -> None:
        """Stop receiving events."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            await asyncio.to_thread(receiver.close)

    async def add(self, url: str, *, worker_id: str | None = None) -> Worker:
        """Take in a worker and ask it at once. Adding the same URL again only asks it again.

        Raises:
            ConfigError: the URL is none.
            HttpError: its host is not allowed, or the id belongs to another URL.
        """
        worker = Worker(WorkerSettings(url=url, id=worker_id))
        host, _ = worker_address(url)
        if host not in self._hosts:
            raise HttpError(
                403, "host_not_allowed", f"worker host {host!r} is not allowed: start with --allow-host {host}"
            )
        known = self._workers.setdefault(worker.id, worker)
        if known.url != worker.url:
            raise HttpError(409, "worker_exists", f"worker {worker.id} is {known.url}: remove it or choose another id")
        await self._look_at([known])
        return known

    async def remove(self, worker_id: str) -> bool:
        """Forget a worker; requests it works on go on. False when it is not known."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return False
        self.router.remove_worker(worker_id)
        async with self._changing:
            await self._drop_sources(worker)
        return True

    def suspect(self, worker_id: str, reason: str) -> None:
        """A request failed on this worker: it gets no more until a probe says it answers."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            self._set_down(worker, reason)
            self._suspects.add(worker_id)
            self._wake.set()

    def unfit(self, model: str | None) -> Collection[str]:
        """Workers that do not serve a model, if some do; an unknown model is for the engines to refuse."""
        if model is None or not any(model in worker.models for worker in self._workers.values()):
            return ()
        return {worker.id for worker in self._workers.values() if model not in worker.models}

    def source_states(self, worker: Worker) -> dict[int | None, SourceState]:
        """The state of each of a worker's sources, by rank."""
        if self._receiver is None:
            return {}
        return {source.dp_rank: self._receiver.state(worker.id, source.dp_rank) for source in worker.sources}

    @property
    def is_settled(self) -> bool:
        """Whether a worker is up, and no source of one that is up is still connecting or recovering."""
        up = [worker for worker in self.workers if worker.up]
        states = (state for worker in up for state in self.source_states(worker).values())
        return bool(up) and all(state.state not in {State.CONNECTING, State.RECOVERING} for state in states)

    async def models(self) -> list[dict[str, Any]]:
        """What the workers that are up serve, each model once.

        Raises:
            NoWorkerError: no worker is up.
        """
        asked = [worker for worker in self.workers if worker.up]
        if not asked:
            raise NoWorkerError(f"none of {len(self._workers)} workers is up: no model is served")
        answers = await asyncio.gather(*(self._get(worker, "/v1/models") for worker in asked), return_exceptions=True)
        merged: dict[str, dict[str, Any]] = {}
        for answer in answers:
            if isinstance(answer, bytes):
                try:
                    models = msgspec.json.decode(answer, type=dict[str, Any]).get("data", [])
                    for model in models:
                        merged.setdefault(model["id"], model)
                except (msgspec.DecodeError, KeyError, TypeError):
                    continue
        return list(merged.values())

    async def _look_at(self, workers: Sequence[Worker]) -> None:
        """Probe workers; discover those that answer for the first time or again."""
        await asyncio.gather(*(self._probe(worker) for worker in workers))
        for worker in workers:
            self._notice_breaks(worker)
        fresh = [worker for worker in workers if worker.up and not worker.is_discovered]
        found = await asyncio.gather(*(self._find_sources(worker) for worker in fresh))
        async with self._changing:
            await self._fit_index([source for sources in found for source in sources or ()])
            for worker, sources in zip(fresh, found, strict=True):
                if self._workers.get(worker.id) is worker:  # else removed meanwhile
                    await self._take_in(worker, sources)

    async def _probe(self, worker: Worker) -> None:
        try:
            await self._get(worker, "/health")
        except aiohttp.ClientConnectorError as error:
            self._probe_failed(worker, f"no connection: {error.strerror or error}", at_once=True)
        except (aiohttp.ClientError, TimeoutError) as error:
            self._probe_failed(worker, f"/health: {error}")
        else:
            worker.failures_in_a_row = 0
            worker.up, worker.reason = True, "answers /health"
            self.router.set_up(worker.id, True)

    def _probe_failed(self, worker: Worker, reason: str, *, at_once: bool = False) -> None:
        worker.probes_failed += 1
        worker.failures_in_a_row += 1
        if at_once or not worker.up or worker.failures_in_a_row >= PROBES_TO_GO_DOWN:
            self._set_down(worker, reason)

    def _set_down(self, worker: Worker, reason: str) -> None:
        if worker.up:
            _log.warning("worker %s is down: %s", worker.id, reason)
        worker.up, worker.reason = False, reason
        worker.is_discovered = False  # what comes back may be another engine
        self.router.set_up(worker.id, False)

    def _notice_breaks(self, worker: Worker) -> None:
        """Discover a worker again whose event connection broke: another engine may have come between two probes."""
        states = self.source_states(worker).values()
        breaks = sum(state.counters.reconnects + state.counters.restarts for state in states)
        if breaks != worker.breaks or any(state.state == State.LOST for state in states):
            worker.is_discovered = False
        worker.breaks = breaks

    async def _find_sources(self, worker: Worker) -> Sequence[Source] | None:
        """The event sources of a worker that answers; empty if it has none, None if it does not say."""
        try:
            models = msgspec.json.decode(await self._get(worker, "/v1/models"), type=_Models)
            worker.models = frozenset(model.id for model in models.data)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            _log.warning("worker %s: /v1/models: %s", worker.id, error)
        try:
            timeout_s = self._settings.fleet.probe_timeout_s
            return await asyncio.to_thread(
                self._discover,
                worker.url,
                worker_id=worker.id,
                timeout_s=timeout_s,
                keys=self._settings.events.consumer_keys(),
            )
        except TransportError as error:
            if not worker.sources:
                self._note_no_events(worker, error)
            return None
        except ConfigError as error:
            self._note_no_events(worker, error)
            return ()

    @staticmethod
    def _note_no_events(worker: Worker, error: KVEventsError) -> None:
        if worker.events != str(error):
            worker.events = str(error)
            _log.warning("worker %s gets requests, but no events of it are used: %s", worker.id, error)

    async def _fit_index(self, sources: Sequence[Source]) -> None:
        """Choose the index's block size while nothing is in it and none was set."""
        sizes = {source.block_size for source in sources if source.block_size}
        is_in_use = any(worker.sources for worker in self._workers.values())
        if self._settings.fleet.block_size is not None or is_in_use or not sizes:
            return
        common = math.lcm(*sizes)
        block_size = common * -(-SMALLEST_BLOCK_SIZE // common)
        if block_size != self.index.block_size:
            await self.close()
            self.index = PrefixIndex(block_size)
            self.router.index = self.index

    async def _take_in(self, worker: Worker, sources: Sequence[Source] | None) -> None:
        """Let a worker take requests, and its sources feed the index."""
        if sources is not None:
            worker.is_discovered = worker.up
            worker.ranks = max(1, len(sources))
        self.router.add_worker(worker.id, ranks=worker.ranks)
        self.router.set_up(worker.id, worker.up)
        if sources is None or (sources and list(sources) == list(worker.sources)):
            return
        await self._drop_sources(worker)
        if sources:
            try:
                self._follow(worker, sources)
            except KVEventsError as error:
                await self._drop_sources(worker)
                self._note_no_events(worker, error)

    def _follow(self, worker: Worker, sources: Sequence[Source]) -> None:
        """Receive a worker's events into the index."""
        size = max((source.block_size for source in sources if source.block_size), default=None)
        if size is not None and self.index.block_size % size:
            raise ConfigError(
                f"its blocks have {size} tokens and those of the index {self.index.block_size}, which is no multiple: "
                f"start the router with --block-size {math.lcm(size, self.index.block_size)}"
            )
        groups = dict(enumerate(sources[0].groups)) or None
        self.index.add_worker(worker.id, block_size=size, residency=sources[0].residency, groups=groups)
        if self._receiver is None:
            self._receiver = self._subscribe((), self.index, on_state=self._on_state)
        for source in sources:
            self.index.set_state(worker.id, source.dp_rank, State.CONNECTING)
            self._receiver.add_source(source)
            worker.sources = (*worker.sources, source)

    def _on_state(self, worker_id: str, dp_rank: int | None, state: SourceState) -> None:
        self.index.set_state(worker_id, dp_rank, state.state)

    async def _drop_sources(self, worker: Worker) -> None:
        """Stop receiving a worker's events and forget what it held."""
        sources, worker.sources = worker.sources, ()
        if self._receiver is not None:
            for source in sources:
                await asyncio.to_thread(self._receiver.remove_source, worker.id, source.dp_rank)
        self.index.remove_worker(worker.id)

    async def _get(self, worker: Worker, path: str) -> bytes:
        """The body of a worker's answer with status 200."""
        patience_s = self._settings.fleet.probe_timeout_s
        timeout = aiohttp.ClientTimeout(total=patience_s)
        try:
            async with self._http.get(worker.url + path, timeout=timeout, allow_redirects=False) as response:
                response.raise_for_status()
                return await response.read()
        except TimeoutError:
            raise TimeoutError(f"no answer within {patience_s:g} s") from None
