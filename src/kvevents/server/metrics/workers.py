"""Metrics of the workers: who is there, and how much each has to do."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kvevents.server.metrics.family import Family, counter, gauge, labels

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
FAMILIES = (UP, PROBES_FAILED, *LOADS.values())


def render(service: "Service") -> Iterator[str]:
    """Lines of the workers, family by family."""
    workers = [(labels(worker=worker.id), worker) for worker in service.fleet.workers]
    yield UP.render((text, int(worker.up)) for text, worker in workers)
    yield PROBES_FAILED.render((text, worker.probes_failed) for text, worker in workers)
    loads = [(labels(worker=worker, rank=rank), load) for (worker, rank), load in service.router.loads().items()]
    for field, family in LOADS.items():
        yield family.render((text, getattr(load, field)) for text, load in loads)
