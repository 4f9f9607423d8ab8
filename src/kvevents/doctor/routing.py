"""Whether the router believes what the engine announced, and would go by it."""

import time
from collections.abc import Sequence

from kvevents.doctor.report import Hop, Verdict
from kvevents.doctor.router import RouterAnswer, RouterClient, RouterSource, RouterWorker
from kvevents.doctor.visit import Visit
from kvevents.errors import TransportError
from kvevents.transport import State

_LOOK_S = 0.05


def check_router(visit: Visit) -> bool:
    """The router knows the engine, follows its events, and would send the probe there."""
    router = visit.router
    if router is None:
        return visit.note(Hop.ROUTER, Verdict.SKIPPED, "nobody named a router (--router)")
    try:
        worker = _known(visit, router.workers())
        return worker is not None and _follows(visit, worker) and _believes(visit, router, worker)
    except TransportError as error:
        return visit.cause(Hop.ROUTER, str(error), "correct --router, or set KVEVENTS_ADMIN_TOKEN")


def _known(visit: Visit, workers: Sequence[RouterWorker]) -> RouterWorker | None:
    worker = next((one for one in workers if one.url.rstrip("/") == visit.engine.url or one.id == visit.worker), None)
    if worker is None:
        known = ", ".join(one.url for one in workers) or "no worker"
        visit.cause(Hop.ROUTER, f"the router knows {known}, and not this engine", "add it: --worker, or POST /workers")
    elif not worker.up:
        visit.cause(Hop.ROUTER, f"the router takes the engine for down: {worker.reason}", "see the router's log")
        return None
    return worker


def _follows(visit: Visit, worker: RouterWorker) -> bool:
    if not worker.sources:
        fix = "see what the router says; --block-size sets that of its index"
        return visit.cause(Hop.ROUTER, f"the router uses no events of the engine: {worker.events}", fix)
    told = {source.endpoint for source in visit.sources}
    for source in worker.sources:
        if not _same_socket(source, told):
            found = f"the router listens at {source.endpoint}, and the engine publishes at {', '.join(sorted(told))}"
            return visit.cause(Hop.ROUTER, found, f"correct the port in the router's configuration: {min(told)}")
        if source.state != State.LIVE:
            fix = "docs/delivery.md explains each reason"
            if source.code == "topic-mismatch":
                fix = "correct the topic in the router's configuration, or leave it out: every topic is heard then"
            found = f"the router's picture of the engine is {source.state}: {source.reason}"
            return visit.cause(Hop.ROUTER, found, fix)
    return True


def _same_socket(source: RouterSource, told: set[str]) -> bool:
    """Hosts may be spelled in many ways; ports may not."""
    return source.endpoint in told or source.endpoint.rpartition(":")[2] in {one.rpartition(":")[2] for one in told}


def _believes(visit: Visit, router: RouterClient, worker: RouterWorker) -> bool:
    ids = list(visit.probe)
    answer = _wait_for_match(visit, router, worker, ids)
    whole = (len(ids) - 1) // answer.block_size
    usable = answer.usable(worker.id)
    if usable < whole:
        fix = "compare both: kvevents diff ROUTER ENGINE; a block size that does not fit is in the router's log"
        return visit.cause(Hop.ROUTER, f"the router believes {usable} of {whole} blocks of the prompt are there", fix)
    chosen = router.route({"token_ids": ids})
    if chosen != worker.id:
        found = f"it would send the prompt to {chosen}: that costs less now"
        fix = "POST /route?explain=1 with the prompt says why"
        return visit.note(Hop.ROUTER, Verdict.NOTE, found, fix)
    return visit.fine(Hop.ROUTER, f"it believes {usable} blocks of the prompt are there, and would send it there")


def _wait_for_match(visit: Visit, router: RouterClient, worker: RouterWorker, ids: list[int]) -> RouterAnswer:
    """The router's answer once it has heard what the engine announced, or after some patience."""
    end = time.monotonic() + visit.beliefs.patience_s
    while True:
        answer = router.query({"token_ids": ids})
        if answer.usable(worker.id) or time.monotonic() > end:
            return answer
        time.sleep(_LOOK_S)
