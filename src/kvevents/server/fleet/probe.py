"""Whether a worker is well, and how busy it is."""

import logging

from kvevents.errors import TransportError
from kvevents.routing import Router
from kvevents.server.fleet.counters import FleetCounters
from kvevents.server.fleet.http import LOOP, StatusError, UnreachableError, WorkerClient
from kvevents.server.fleet.load import LOAD_PATHS
from kvevents.server.fleet.worker import Worker

_log = logging.getLogger("kvevents.server")

PROBES_TO_GO_DOWN = 2
"""Late or wrong answers in a row that take a worker out; a refused connection does at once."""


class Prober:
    """Asks workers, and tells the router.

    Args:
        client: asks over HTTP.
        router: told who is up, and how busy.
        counters: count it.
        reads_load: whether to ask how busy a worker is.
    """

    def __init__(self, client: WorkerClient, router: Router, counters: FleetCounters, *, reads_load: bool) -> None:
        self._client = client
        self._router = router
        self._counters = counters
        self._reads_load = reads_load

    async def probe(self, worker: Worker) -> None:
        """Ask a worker whether it is well, and if it is, how busy."""
        worker.probes += 1
        self._counters.probes += 1
        try:
            await self._client.get(worker, "/health")
        except UnreachableError as error:
            self._failed(worker, str(error), at_once=True)
        except StatusError as error:
            if error.status == LOOP:
                self._failed(worker, "it is this router itself, or one that leads back to it", at_once=True)
            else:
                self._failed(worker, str(error))
        except TransportError as error:
            self._failed(worker, str(error))
        else:
            worker.failures_in_a_row = 0
            worker.up, worker.reason = True, "answers /health"
            self._router.set_up(worker.id, not worker.is_draining)
            if self._reads_load:
                await self._read_load(worker)

    def set_down(self, worker: Worker, reason: str) -> None:
        """Take a worker out until it answers a probe."""
        if worker.up:
            self._counters.went_down += 1
            _log.warning("worker %s is down: %s", worker.id, reason)
        worker.up, worker.reason = False, reason
        worker.is_discovered = False  # what comes back may be another engine
        worker.load_path = None
        worker.reported = {}
        self._router.set_up(worker.id, False)

    def _failed(self, worker: Worker, reason: str, *, at_once: bool = False) -> None:
        worker.probes_failed += 1
        worker.failures_in_a_row += 1
        self._counters.probes_failed += 1
        if at_once or not worker.up or worker.failures_in_a_row >= PROBES_TO_GO_DOWN:
            self.set_down(worker, reason)

    async def _read_load(self, worker: Worker) -> None:
        """Ask how busy a worker is where it said so before; else everywhere, once for each time it comes up."""
        if worker.is_discovered and worker.load_path is None:
            return  # it says so nowhere
        for path in [worker.load_path] if worker.load_path else list(LOAD_PATHS):
            try:
                loads = LOAD_PATHS[path](await self._client.get(worker, path))
            except TransportError as error:
                if worker.load_path is not None:
                    worker.load_failures += 1
                    self._counters.load_failures += 1
                    _log.debug("worker %s: %s", worker.id, error)
                continue
            worker.load_path = path
            worker.load_reads += 1
            worker.reported = loads
            self._counters.load_reads += 1
            for rank, load in loads.items():
                self._router.set_reported_load(
                    worker.id, rank, running=load.running, waiting=load.waiting, cached_tokens_used=load.used_tokens
                )
            return
