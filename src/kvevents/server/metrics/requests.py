"""Metrics of requests: what came, what became of it, and how long it took."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from kvevents.server.metrics.family import NO_LABELS, Family, counter, histogram, labels
from kvevents.server.metrics.histogram import Histogram

if TYPE_CHECKING:
    from kvevents.server.service import Service

OTHER_MODEL = "other"
"""Stands for every model that no worker serves: clients may ask for anything."""

CLIENT_LEFT = "499"
"""Stands for the status of a request whose client left before it had one."""

_MODELS_FOR_S = 1.0
_SHORT = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
_LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

REQUESTS = counter(
    "requests",
    "Requests to /v1 that a worker was meant to answer, by model and status of the answer.",
    "5xx: kvevents_rejected_requests_total has the router's own reasons, kvevents_attempts_total the workers' "
    "failures. 499: the client left before it had an answer. 429: more requests than the queue holds; add workers.",
    "model",
    "status",
)
ATTEMPTS = counter(
    "attempts",
    "Attempts by worker and outcome; a request has more than one when a worker failed before it answered.",
    "`unanswered`: the worker fails, and others take over. `broken`: it failed in the middle of an answer, which "
    "clients see. `refused`: the engine's own error. `client_left`: not the worker's fault.",
    "worker",
    "outcome",
)
UNPLACED = counter(
    "unplaced_requests",
    "Requests that no worker could take.",
    "No worker is up, or none of those left serves the model: see kvevents_worker_up.",
)
UNREAD = counter(
    "unread_prompts",
    "Requests whose prompt could not be read as tokens.",
    "They are routed without their prefix. Give the router the model's tokenizer, or send token ids.",
)
OBSERVER_FAILURES = counter(
    "ledger_observer_failures",
    "Times something that listens to the books failed: what became of that request is not in its figures.",
    "A defect: the router's log has the first one in full.",
)
FIRST_BYTE_BY_WORKER = Family(
    "kvevents_worker_first_byte_seconds",
    "summary",
    ("worker",),
    "Time from sending a request to the worker to the first bytes of its answer.",
    "The worker with a higher mean than the rest is too busy, or not well.",
)

REQUEST_SECONDS = histogram(
    "request_seconds",
    "Time from the head of a request to the end of its answer.",
    "Follows the answers' length; compare with kvevents_upstream_first_byte_seconds.",
)
QUEUE_SECONDS = histogram(
    "queue_seconds",
    "Time that a request waited for a worker with room.",
    "The workers' limits are reached: add workers, or raise `max_in_flight`.",
)
TOKENIZE_SECONDS = histogram(
    "tokenize_seconds",
    "Time for a text to become tokens, waiting for its turn included.",
    "Long prompts as text. The router's CPU is the limit: send token ids, or run more routers.",
)
SELECT_SECONDS = histogram(
    "select_seconds",
    "Time to choose a worker.",
    "Grows with prompts and workers, to about a millisecond. More: the router's CPU is the limit.",
)
FIRST_BYTE_SECONDS = histogram(
    "upstream_first_byte_seconds",
    "Time from sending a request to a worker to the first bytes of its answer.",
    "Mostly prefill and the engine's own queue: falls with the hit rate.",
)

FAMILIES = (
    REQUESTS,
    ATTEMPTS,
    UNPLACED,
    UNREAD,
    OBSERVER_FAILURES,
    REQUEST_SECONDS,
    QUEUE_SECONDS,
    TOKENIZE_SECONDS,
    SELECT_SECONDS,
    FIRST_BYTE_SECONDS,
    FIRST_BYTE_BY_WORKER,
)


class ServesModels(Protocol):
    """A worker, as far as models go."""

    @property
    def models(self) -> frozenset[str]: ...


class Served(Protocol):
    """A fleet, as far as models go."""

    @property
    def workers(self) -> Sequence[ServesModels]: ...


class Requests:
    """Times and outcomes of requests.

    Args:
        fleet: whose models have a label.

    Attributes:
        request_seconds: from a request's head to the end of its answer.
        queue_seconds: how long a request waited for a worker with room.
        tokenize_seconds: how long a text took to become tokens.
        select_seconds: how long a worker took to be chosen.
        first_byte_seconds: from sending a request to a worker to the first bytes of its answer.
    """

    def __init__(self, fleet: Served) -> None:
        self._fleet = fleet
        self._models: frozenset[str] = frozenset()
        self._ask_again = 0.0
        self.request_seconds = Histogram(REQUEST_SECONDS, _LONG)
        self.queue_seconds = Histogram(QUEUE_SECONDS, _LONG)
        self.tokenize_seconds = Histogram(TOKENIZE_SECONDS, (*_SHORT, 0.25, 1.0))
        self.select_seconds = Histogram(SELECT_SECONDS, _SHORT)
        self.first_byte_seconds = Histogram(FIRST_BYTE_SECONDS, _LONG)
        self._counts: Counter[tuple[str, str]] = Counter()
        self._first_bytes: defaultdict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))

    def ended(self, model: str | None, status: int | None, seconds: float) -> None:
        """A request is over; `status` is None when the client left before it had one."""
        self._counts[self._label(model), CLIENT_LEFT if status is None else str(status)] += 1
        self.request_seconds.observe(seconds)

    def first_byte(self, worker: str, seconds: float) -> None:
        """A worker began to answer."""
        self.first_byte_seconds.observe(seconds)
        total, count = self._first_bytes[worker]
        self._first_bytes[worker] = total + seconds, count + 1

    def _label(self, model: str | None) -> str:
        """The model when a worker serves it; the fleet is asked again after a while."""
        if model is None:
            return OTHER_MODEL
        if model not in self._models and (now := time.monotonic()) >= self._ask_again:
            self._models = frozenset[str]().union(*(worker.models for worker in self._fleet.workers))
            self._ask_again = now + _MODELS_FOR_S
        return model if model in self._models else OTHER_MODEL

    def render(self, service: "Service") -> Iterator[str]:
        """All lines, family by family; those of workers and models that left are forgotten."""
        workers = {worker.id for worker in service.fleet.workers}
        self._models = frozenset[str]().union(*(worker.models for worker in service.fleet.workers))
        for key in [key for key in self._counts if key[0] not in self._models and key[0] != OTHER_MODEL]:
            del self._counts[key]
        for gone in self._first_bytes.keys() - workers:
            del self._first_bytes[gone]
        ledger = service.ledger
        yield REQUESTS.render(
            (labels(model=model, status=status), count) for (model, status), count in self._counts.items()
        )
        yield ATTEMPTS.render(
            (labels(worker=worker, outcome=outcome), count)
            for (worker, outcome), count in ledger.outcomes.items()
            if worker in workers
        )
        yield UNPLACED.render([(NO_LABELS, ledger.unplaced)])
        yield UNREAD.render([(NO_LABELS, ledger.unread)])
        yield OBSERVER_FAILURES.render([(NO_LABELS, ledger.observer_failures)])
        yield FIRST_BYTE_BY_WORKER.render_sums(
            (labels(worker=worker), total, count) for worker, (total, count) in self._first_bytes.items()
        )
        for one in (
            self.request_seconds,
            self.queue_seconds,
            self.tokenize_seconds,
            self.select_seconds,
            self.first_byte_seconds,
        ):
            yield one.render()
