"""Metrics of the workers: who is there, and how much each has to do."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kvevents.server.metrics.family import NO_LABELS, Family, counter, gauge, labels

if TYPE_CHECKING:
    from kvevents.server.service import Service

UP = gauge(
    "worker_up",
    "1 when the worker takes requests, 0 when it is down.",
    "GET /workers says why. All at 0: nothing is served, and the network of the router is the first suspect.",
    "worker",
)
PROBES_FAILED = counter(
    "worker_probes_failed",
    "Probes that the worker failed.",
    "Some without the worker going down: it answers /health too late, so it is overloaded.",
    "worker",
)
LOADS: Mapping[str, Family] = {
    field: gauge(name, meaning, advice, "worker", "rank")
    for field, name, meaning, advice in (
        (
            "requests",
            "open_requests",
            "Requests on the rank that have not ended.",
            "Uneven for long: a few prefixes are hot, and their owners get them; the policy's weight of load moves it.",
        ),
        (
            "queued",
            "queued_prefill_tokens",
            "Tokens sent to the rank that it has not computed yet.",
            "Time to first byte follows it. High on all: more prefill than the fleet can do.",
        ),
        (
            "decode",
            "decode_prompt_tokens",
            "Prompt tokens of the answers that the rank is producing.",
            "How full its cache is with requests in flight; above its capacity the engine preempts.",
        ),
    )
}
COUNTERS: Mapping[str, Family] = {
    field: counter(name, meaning, advice)
    for field, name, meaning, advice in (
        ("joins", "worker_joins", "Workers that were taken in, those configured included.", "Deployments and scaling."),
        ("leaves", "worker_leaves", "Workers that were removed.", "Deployments and scaling."),
        ("drains", "worker_drains", "Workers that were let finish what they worked on.", "Of those removed."),
        (
            "refused_joins",
            "refused_worker_joins",
            "Workers that were refused: a host that is not allowed, or an id that is taken.",
            "A deployment that adds workers under names the router was not told of: `worker_hosts`.",
        ),
        ("probes", "probes", "Questions whether a worker is well.", "One in `probe_interval_s` for each worker."),
        ("probes_failed", "failed_probes", "Those that it did not answer well.", "By worker: GET /workers."),
        (
            "went_down",
            "worker_downs",
            "Times a worker went from up to down.",
            "One that does again and again: see its own log; its cache is trusted anew each time.",
        ),
        ("discoveries", "discoveries", "Times a worker was asked for its event sources.", "Once for each start of it."),
        (
            "discoveries_failed",
            "failed_discoveries",
            "Times it did not say, or what it said could not be used.",
            "The engine's events are off, or of a block size that does not fit; GET /workers says which.",
        ),
        ("load_reads", "load_reads", "Times a worker said how busy it is.", "None: the router goes by its own books."),
        (
            "load_failures",
            "failed_load_reads",
            "Times it should have said how busy it is, and did not.",
            "The router goes by its own books meanwhile, which know of no other routers.",
        ),
        (
            "distrusts",
            "worker_distrusts",
            "Times a worker's events were found not to be believed, though they looked complete.",
            (
                "In which direction they err: kvevents_worker_overstated_cached_tokens_total and "
                "kvevents_worker_understated_cached_tokens_total."
            ),
        ),
    )
}
DISTRUSTED = gauge(
    "worker_distrusted",
    "1 while the worker's events are not believed, since expected and reported cached tokens drifted apart.",
    "GET /workers says why; routing weighs what it is said to hold like that of any source that is not live.",
    "worker",
)
DRAINING = gauge(
    "worker_draining",
    "1 while the worker gets no more requests and finishes those it works on.",
    "For long: an answer that does not end; DELETE /workers without draining ends it.",
    "worker",
)
FAMILIES = (UP, DISTRUSTED, DRAINING, PROBES_FAILED, *LOADS.values(), *COUNTERS.values())


def render(service: "Service") -> Iterator[str]:
    """Lines of the workers, family by family."""
    workers = [(labels(worker=worker.id), worker) for worker in service.fleet.workers]
    yield UP.render((text, int(worker.up)) for text, worker in workers)
    yield PROBES_FAILED.render((text, worker.probes_failed) for text, worker in workers)
    yield DISTRUSTED.render((text, int(worker.distrusted is not None)) for text, worker in workers)
    yield DRAINING.render((text, int(worker.is_draining)) for text, worker in workers)
    loads = [(labels(worker=worker, rank=rank), load) for (worker, rank), load in service.router.loads().items()]
    for field, family in LOADS.items():
        yield family.render((text, getattr(load, field)) for text, load in loads)
    counters = service.fleet.counters
    for field, family in COUNTERS.items():
        yield family.render([(NO_LABELS, getattr(counters, field))])
