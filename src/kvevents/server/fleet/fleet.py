"""Keeps workers, router and index in step."""

import asyncio
import logging
import os
import random
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from kvevents.errors import ConfigError, KVEventsError, TransportError
from kvevents.index import PrefixIndex
from kvevents.routing import NoWorkerError, Router
from kvevents.server.configuration import Settings, WorkerSettings
from kvevents.server.configuration.load import with_api_key
from kvevents.server.errors import HttpError
from kvevents.server.fleet.counters import FleetCounters
from kvevents.server.fleet.discovery import Discovery
from kvevents.server.fleet.http import WorkerClient, routers_before
from kvevents.server.fleet.jetstream import FleetLog
from kvevents.server.fleet.join import check_join, check_same
from kvevents.server.fleet.probe import Prober
from kvevents.server.fleet.readiness import Readiness, assess
from kvevents.server.fleet.sources import Discover, EventSources, Subscribe
from kvevents.server.fleet.worker import Worker
from kvevents.transport import Source, SourceState, State, Subscriber, discover

_log = logging.getLogger("kvevents.server")

DRAIN_LOOK_S = 0.05
"""How often a draining worker's open requests are counted."""


class Fleet:
    """The workers of a router. Lives on one event loop; its index and router may be used from any thread.

    Args:
        settings: of the service.
        discover: finds a worker's event sockets; blocking, called in a thread.
        subscribe: makes what receives from sources into the index.

    Attributes:
        name: of this router, drawn anew at each start.
        router: chooses workers.
        counters: what happened.
        on_left: told the id of every worker that is removed.

    Raises:
        ConfigError: a setting that cannot work.
    """

    def __init__(self, settings: Settings, *, discover: Discover = discover, subscribe: Subscribe = Subscriber) -> None:
        self._settings = settings
        self._discover = discover
        events = settings.events
        patience_s = settings.fleet.probe_timeout_s
        self._log = None if events.jetstream is None else FleetLog(events.jetstream, patience_s=patience_s)
        self._sources = EventSources(
            settings, subscribe=subscribe, log=self._log, on_index=self._on_index, on_source=self._on_source
        )
        self._workers: dict[str, Worker] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._wakes: dict[str, asyncio.Event] = {}
        self._drains: dict[str, asyncio.Task[None]] = {}
        self._changing = asyncio.Lock()
        self._client: WorkerClient | None = None
        self.name = secrets.token_hex(8)
        self.counters = FleetCounters()
        self.on_left: list[Callable[[str], None]] = []
        self.router = Router(self._sources.index, policy=settings.routing.policy, settings=settings.routing)

    @property
    def index(self) -> PrefixIndex:
        """What is known of all workers' caches."""
        return self._sources.index

    @property
    def workers(self) -> Sequence[Worker]:
        """All workers, in the order they came."""
        return list(self._workers.values())

    def __getitem__(self, worker_id: str) -> Worker:
        return self._workers[worker_id]

    def __contains__(self, worker_id: object) -> bool:
        return worker_id in self._workers

    async def start(self) -> None:
        """Take in the configured workers, ask each once, and go on to ask until `close`."""
        self._client = WorkerClient(timeout_s=self._settings.fleet.probe_timeout_s, name=self.name)
        self._prober = Prober(self._client, self.router, self.counters, reads_load=self._settings.fleet.read_load)
        self._discovery = Discovery(self._settings, self._client, self._discover, self._log)
        await self._sources.open()
        workers = [self._join(described) for described in self._settings.workers]
        await self._look_at(workers)
        for worker in workers:
            self._watch(worker)

    async def close(self) -> None:
        """Stop asking workers and receiving events. Idempotent."""
        tasks = [*self._watches.values(), *self._drains.values()]
        self._watches.clear()
        self._drains.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._sources.close()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def add(self, described: WorkerSettings) -> Worker:
        """Take in a worker and ask it at once. One that is there already is only asked again, and drains no more.

        Raises:
            ConfigError: it is the router itself.
            HttpError: it is not allowed, or its id or URL belongs to another worker.
        """
        try:
            check_join(described, self._settings)
            described = with_api_key(described, os.environ, default=self._settings.security.worker_api_key)
            worker = self._find(described)
        except (HttpError, ConfigError):
            self.counters.refused_joins += 1
            raise
        if worker is None:
            worker = self._join(described)
        elif worker.is_draining:
            self._stop_draining(worker)
        await self._look_at([worker])
        if worker.id not in self._watches and self._workers.get(worker.id) is worker:
            self._watch(worker)
        return worker

    async def remove(self, worker_id: str) -> bool:
        """Forget a worker; requests it works on go on. False when it is not known."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return False
        self.counters.leaves += 1
        self.router.remove_worker(worker_id)
        for forget in self.on_left:
            forget(worker_id)
        self._wakes.pop(worker_id, None)
        async with self._changing:  # nobody is in the middle of taking it in, and may be cancelled
            for tasks in (self._watches, self._drains):
                task = tasks.pop(worker_id, None)
                if task is not None and task is not asyncio.current_task():
                    task.cancel()
            await self._sources.drop(worker)
        return True

    def drain(self, worker_id: str, *, patience_s: float | None = None) -> Worker | None:
        """Send a worker no more requests, and forget it once those it works on have ended; None when it is not known.

        Args:
            worker_id: the worker.
            patience_s: forget it after so long in any case; None: wait as long as it takes.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return None
        self.counters.drains += not worker.is_draining
        worker.is_draining = True
        self.router.set_up(worker_id, False)
        known = self._drains.pop(worker_id, None)
        if known is not None:
            known.cancel()
        self._drains[worker_id] = asyncio.create_task(self._leave_when_idle(worker, patience_s))
        return worker

    def suspect(self, worker_id: str, reason: str) -> None:
        """A request failed on this worker: it gets no more until a probe says it answers."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            self._prober.set_down(worker, reason)
            if worker_id in self._wakes:
                self._wakes[worker_id].set()

    def distrust(self, worker_id: str, reason: str) -> None:
        """What a worker's events promise is not what it does: its pictures are `degraded` until it is trusted again."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            self.counters.distrusts += worker.distrusted is None
            self._sources.distrust(worker, reason)

    def trust(self, worker_id: str) -> None:
        """A worker does what its events promise, again."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.distrusted is not None:
            self._sources.distrust(worker, None)

    def unfit(self, model: str | None) -> Collection[str]:
        """Workers that do not serve a model, if some do; an unknown model is for the engines to refuse."""
        if model is None:
            return ()
        unfit = {worker.id for worker in self._workers.values() if model not in worker.models}
        return unfit if len(unfit) < len(self._workers) else ()

    def why_nobody(self, error: NoWorkerError) -> str:
        """Why no worker takes a request. The router knows only of workers that have answered once; others count too."""
        if self.router.workers or not self._workers:
            return str(error)
        first = next(iter(self._workers.values()))
        return f"none of {len(self._workers)} workers has answered yet ({first.id}: {first.reason})"

    def base_of(self, adapter: str) -> str | None:
        """The model of an adapter that some worker lists; None for anything else."""
        workers = self._workers.values()
        return next((worker.adapters[adapter] for worker in workers if adapter in worker.adapters), None)

    def open_requests(self, worker_id: str) -> int:
        """Requests that a worker works on, as the router counts them."""
        return sum(load.requests for (name, _), load in self.router.loads().items() if name == worker_id)

    def source_states(self, worker: Worker) -> dict[int | None, SourceState]:
        """The state of each of a worker's sources, by rank."""
        return self._sources.states(worker)

    def readiness(self) -> Readiness:
        """Whether requests can be placed as well as they will be, and what that waits for."""
        pictures = [(worker, self.source_states(worker)) for worker in self.workers]
        return assess(pictures, grace_s=self._settings.fleet.ready_grace_s)

    async def models(self, asked: str | None = None) -> list[dict[str, Any]]:
        """What the workers that are up serve, each model once.

        Args:
            asked: the header that names the routers that ask.

        Raises:
            HttpError: 508, this router is one of them.
            NoWorkerError: no worker is up.
        """
        routers = routers_before(asked, self.name)
        up = [worker for worker in self.workers if worker.up]
        if not up or self._client is None:
            raise NoWorkerError(f"none of {len(self._workers)} workers is up: no model is served")
        questions = (self._client.get(worker, "/v1/models", routers=routers) for worker in up)
        answers = await asyncio.gather(*questions, return_exceptions=True)
        merged: dict[str, dict[str, Any]] = {}
        for worker, answer in zip(up, answers, strict=True):
            if isinstance(answer, bytes):
                try:
                    for model in msgspec.json.decode(answer, type=dict[str, Any]).get("data", []):
                        if not worker.settings.models or model["id"] in worker.settings.models:
                            merged.setdefault(model["id"], model)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
                    continue
        return list(merged.values())

    # Coming and going.

    def _find(self, described: WorkerSettings) -> Worker | None:
        """The worker that is described, if it is there."""
        worker_id = self._name(described)
        for worker in self._workers.values():
            if (worker.id == worker_id) != (worker.url == described.base_url):
                raise HttpError(
                    409, "worker_exists", f"worker {worker.id} is {worker.url}: remove it or choose another id"
                )
            if worker.id == worker_id:
                try:
                    check_same(worker.settings, described)
                except ConfigError as error:
                    raise HttpError(409, "worker_exists", str(error)) from None
                return worker
        return None

    def _name(self, described: WorkerSettings) -> str:
        return described.worker_id if self._log is None else self._log.worker_id(described)

    def _join(self, described: WorkerSettings) -> Worker:
        worker = Worker(described, worker_id=self._name(described))
        self._workers[worker.id] = worker
        self.counters.joins += 1
        return worker

    async def _leave_when_idle(self, worker: Worker, patience_s: float | None) -> None:
        try:
            async with asyncio.timeout(patience_s):
                while self.open_requests(worker.id):  # noqa: ASYNC110 (the router counts them in any thread)
                    await asyncio.sleep(DRAIN_LOOK_S)
        except TimeoutError:
            _log.warning("worker %s leaves with %d open requests", worker.id, self.open_requests(worker.id))
        if self._workers.get(worker.id) is worker:
            await self.remove(worker.id)

    def _stop_draining(self, worker: Worker) -> None:
        worker.is_draining = False
        task = self._drains.pop(worker.id, None)
        if task is not None:
            task.cancel()

    # Watching.

    def _watch(self, worker: Worker) -> None:
        self._wakes[worker.id] = asyncio.Event()
        self._watches[worker.id] = asyncio.create_task(self._keep_looking(worker, self._wakes[worker.id]))

    async def _keep_looking(self, worker: Worker, wake: asyncio.Event) -> None:
        """Ask a worker again and again, at times that drift apart from the others', and at once when it is suspect."""
        every = self._settings.fleet
        while True:
            pause_s = every.probe_interval_s * random.uniform(1 - every.probe_jitter, 1 + every.probe_jitter)  # noqa: S311 (no secret)
            try:
                async with asyncio.timeout(pause_s):
                    await wake.wait()
            except TimeoutError:
                pass
            wake.clear()
            try:
                await self._look_at([worker])
            except Exception:
                _log.exception("a look at worker %s failed; the next one follows", worker.id)

    async def _look_at(self, workers: Sequence[Worker]) -> None:
        """Probe workers; discover those that answer for the first time or again."""
        await asyncio.gather(*(self._prober.probe(worker) for worker in workers))
        for worker in workers:
            self._notice_breaks(worker)
        fresh = [worker for worker in workers if worker.up and not worker.is_discovered]
        known = [worker for worker in workers if worker.up and worker.is_discovered]
        await asyncio.gather(*(self._discovery.refresh_models(worker) for worker in known))
        found = await asyncio.gather(*(self._find_sources(worker) for worker in fresh))
        async with self._changing:
            await self._sources.fit([source.block_size for sources in found for source in sources or ()])
            for worker, sources in zip(fresh, found, strict=True):
                if self._workers.get(worker.id) is worker:  # else removed meanwhile
                    await self._take_in(worker, sources)

    def _notice_breaks(self, worker: Worker) -> None:
        """Discover a worker again whose event connection broke: another engine may have come between two probes."""
        states = self.source_states(worker).values()
        breaks = sum(state.counters.reconnects + state.counters.restarts for state in states)
        if breaks != worker.breaks or any(state.state is State.LOST for state in states):
            worker.is_discovered = False
        worker.breaks = breaks

    async def _find_sources(self, worker: Worker) -> Sequence[Source] | None:
        """The event sources of a worker that answers; empty if it has none, None if it does not say."""
        self.counters.discoveries += 1
        await self._discovery.describe(worker)
        try:
            return await self._discovery.sources(worker)
        except TransportError as error:
            self.counters.discoveries_failed += 1
            if not worker.sources:
                self._note_no_events(worker, error)
            return None
        except ConfigError as error:
            self.counters.discoveries_failed += 1
            self._note_no_events(worker, error)
            return ()

    async def _take_in(self, worker: Worker, sources: Sequence[Source] | None) -> None:
        """Let a worker take requests, and its sources feed the index."""
        if sources is not None:
            worker.is_discovered = worker.up
            worker.ranks = len(sources) or worker.settings.ranks or 1
        if sources is not None and (not sources or list(sources) != list(worker.sources)):
            try:
                await self._sources.follow(worker, sources)
            except KVEventsError as error:
                self.counters.discoveries_failed += 1
                self._note_no_events(worker, error)
        self.router.add_worker(worker.id, ranks=worker.ranks, role=worker.role, events=bool(worker.sources))
        self.router.set_up(worker.id, worker.up and not worker.is_draining)
        self._sources.tell(worker)  # what was told before it was there went nowhere

    @staticmethod
    def _note_no_events(worker: Worker, error: KVEventsError) -> None:
        if worker.events != str(error):
            worker.events = str(error)
            _log.warning("worker %s gets requests, but no events of it are used: %s", worker.id, error)

    def _on_index(self, index: PrefixIndex) -> None:
        self.router.index = index

    def _on_source(self, worker_id: str, dp_rank: int | None, state: State | None) -> None:
        self.router.set_source(worker_id, dp_rank, state)
