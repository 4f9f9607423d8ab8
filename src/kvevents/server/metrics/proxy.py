"""Metrics of the proxy: connections, the queue, and what was refused or went wrong on the way."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kvevents.server.metrics.family import NO_LABELS, Family, counter, gauge, labels

if TYPE_CHECKING:
    from kvevents.server.service import Service

REJECTED = counter(
    "rejected_requests",
    "Requests that the router refused itself, by the code of the error.",
    "`queue_full`, `queue_timeout`: add workers. `unauthorized`: a client with an old token, or somebody trying. "
    "`worker_failed`, `worker_timeout`: see kvevents_attempts_total for which worker.",
    "code",
)
COUNTERS: Mapping[str, Family] = {
    field: counter(name, meaning, advice)
    for field, name, meaning, advice in (
        (
            "connections",
            "client_connections",
            "Connections of clients.",
            "As many as requests: clients do not keep connections open, which costs them a round trip each time.",
        ),
        ("accepted", "accepted_requests", "Requests for a worker whose head was read.", "Traffic, refusals included."),
        (
            "queued",
            "queued_requests",
            "Requests that had to wait for a worker with room.",
            "The workers' limits are reached: add workers, or raise `max_in_flight`.",
        ),
        (
            "queue_timeouts",
            "queue_timeouts",
            "Requests that waited too long for a worker with room.",
            "Overload that lasts: add workers; the wait is `waiting_timeout_s`.",
        ),
        (
            "retried",
            "retried_requests",
            "Attempts on another worker after one had failed.",
            "Clients notice nothing yet; kvevents_attempts_total says which worker fails.",
        ),
        (
            "reconnected",
            "upstream_reconnects",
            "Requests sent again on a new connection, since the worker had just closed the old one.",
            "The engine's keep-alive time is shorter than the router's; harmless.",
        ),
        (
            "client_left",
            "client_disconnects",
            "Requests whose client left before its answer was complete.",
            "Clients' own timeouts are shorter than answers take, or a load balancer's in front is.",
        ),
        (
            "client_stalled",
            "client_stalls",
            "Clients cut off because they did not read their answers.",
            "A broken client; the limit is `write_timeout_s`.",
        ),
        (
            "slow_heads",
            "slow_heads",
            "Connections closed because a request's head took too long.",
            "Many: somebody tries to hold connections (slow loris).",
        ),
        (
            "slow_bodies",
            "slow_bodies",
            "Connections closed because a request's body took too long.",
            "Large bodies over thin lines, or somebody who holds connections; the limit is `body_timeout_s`.",
        ),
        ("idle_closed", "idle_connections_closed", "Connections closed because nothing came on them.", "Usual."),
        (
            "refused_connections",
            "refused_connections",
            "Connections refused because there were too many.",
            "Raise `max_connections` and the limit of open files, or run more routers.",
        ),
        (
            "broken_streams",
            "broken_streams",
            "Answers that ended in the middle because their worker failed.",
            "Clients see these: find the worker in kvevents_attempts_total.",
        ),
        (
            "first_byte_timeouts",
            "first_byte_timeouts",
            "Times a worker began no answer in time.",
            "A worker that hangs, or a queue in it longer than `first_byte_timeout_s`.",
        ),
        (
            "idle_timeouts",
            "idle_timeouts",
            "Times a worker stopped in the middle of an answer, or gave none that is not streamed.",
            "A worker that hangs; the limit is `idle_timeout_s`.",
        ),
        (
            "garbage",
            "malformed_replies",
            "Replies of workers that were not HTTP, or contradicted themselves.",
            "Something else listens at a worker's address.",
        ),
        (
            "loops",
            "routing_loops",
            "Requests that had passed this router before.",
            "One of its workers is the router itself: correct the configuration.",
        ),
        (
            "unreported",
            "unreported_answers",
            "Answers with status 200 whose end gave no usage.",
            "kvevents_worker_unreported_answers_total says whose; docs/deploy.md how engines are told to report.",
        ),
    )
}
GAUGES: Mapping[str, Family] = {
    field: gauge(name, meaning, advice)
    for field, name, meaning, advice in (
        ("connections", "open_client_connections", "Clients that are connected.", "The limit is `max_connections`."),
        (
            "waiting",
            "waiting_requests",
            "Requests that wait for a worker with room.",
            "Above 0 for long: the fleet is too small; at `max_waiting` further ones are refused.",
        ),
        ("in_flight", "in_flight_requests", "Requests that workers are answering.", "Traffic times duration."),
        (
            "buffered_bytes",
            "buffered_body_bytes",
            "Bodies of requests that are held until they are sent.",
            "Near `max_buffered_bytes` new requests are refused.",
        ),
        (
            "idle_upstream_connections",
            "idle_upstream_connections",
            "Connections to workers that are kept for the next request.",
            "Falls to 0 with traffic: engines close them at once.",
        ),
    )
}
FAMILIES = (REJECTED, *COUNTERS.values(), *GAUGES.values())


def render(service: "Service") -> Iterator[str]:
    """Lines of the proxy, family by family."""
    counters, gauges = service.proxy.counters, service.proxy.gauges()
    yield REJECTED.render((labels(code=code), count) for code, count in counters.rejected.items())
    for field, family in COUNTERS.items():
        yield family.render([(NO_LABELS, getattr(counters, field))])
    for field, family in GAUGES.items():
        yield family.render([(NO_LABELS, gauges[field])])
