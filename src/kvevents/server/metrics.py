"""Prometheus metrics: every name, and where its figure comes from."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvevents.server.fleet import Fleet
from kvevents.server.ledger import Ledger, PolicyCounts
from kvevents.transport import SourceCounters

SELECT_SECONDS = "kvevents_select_seconds"
FIRST_BYTE_SECONDS = "kvevents_upstream_first_byte_seconds"
REQUESTS = "kvevents_requests"
UNPLACED = "kvevents_unplaced_requests"
UNREAD = "kvevents_unread_prompts"
POLICY_PREFIX = "kvevents_policy_"
WORKER_UP = "kvevents_worker_up"
PROBES_FAILED = "kvevents_worker_probes_failed"
OPEN_REQUESTS = "kvevents_open_requests"
QUEUED_TOKENS = "kvevents_queued_prefill_tokens"
DECODE_TOKENS = "kvevents_decode_prompt_tokens"
SOURCE_STATE = "kvevents_source_state"
SOURCE_TRANSITIONS = "kvevents_source_transitions"
SOURCE_PREFIX = "kvevents_source_"
INDEX_BLOCKS = "kvevents_index_blocks"
INDEX_MEMORY_BYTES = "kvevents_index_memory_bytes"
INDEX_IGNORED_BATCHES = "kvevents_index_ignored_batches"
HELD_BLOCKS = "kvevents_index_held_blocks"
SKIPPED_EVENTS = "kvevents_index_skipped_events"
INDEX_PREFIX = "kvevents_index_"

_INDEX_COUNTERS = {
    "events": ("applied", "Events applied."),
    "stored": ("blocks", "Blocks stored."),
    "removed": ("blocks", "Blocks (copies) removed."),
    "cleared": ("events", "Clears."),
    "removal_misses": ("blocks", "Removals of blocks that were not held there."),
    "dropped": ("blocks", "Pending and parked blocks dropped, too many or too old."),
    "refused": ("events", "Stores that contradict the block size."),
    "duplicates": ("batches", "Batches whose sequence had been applied before."),
}
"""Counters of a source in the index: field, unit in the name, meaning."""

_SELECT_BUCKETS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
_FIRST_BYTE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """One registry per application: two in one process do not meet.

    Attributes:
        select_seconds: time to choose a worker.
        first_byte_seconds: time from sending a request to a worker to the first bytes of its answer.
    """

    def __init__(self, fleet: Fleet, ledger: Ledger) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Figures(fleet, ledger))
        self.select_seconds = Histogram(
            SELECT_SECONDS, "Time to choose a worker.", registry=self._registry, buckets=_SELECT_BUCKETS
        )
        self.first_byte_seconds = Histogram(
            FIRST_BYTE_SECONDS,
            "Time from sending a request to a worker to the first bytes of its answer.",
            registry=self._registry,
            buckets=_FIRST_BYTE_BUCKETS,
        )

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _Figures(Collector):
    """What others keep the books on, read when it is asked for. Labels: worker, rank, state, outcome, policy."""

    def __init__(self, fleet: Fleet, ledger: Ledger) -> None:
        self._fleet = fleet
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._workers()
        yield from self._sources()
        yield from self._index()

    def _requests(self) -> Iterator[Metric]:
        ledger = self._ledger
        yield _labelled(
            CounterMetricFamily(REQUESTS, "Attempts by worker and outcome.", labels=("worker", "outcome")),
            ledger.outcomes.items(),
        )
        yield CounterMetricFamily(UNPLACED, "Requests that no worker could take.", value=ledger.unplaced)
        yield CounterMetricFamily(UNREAD, "Prompts that could not be read as tokens.", value=ledger.unread)
        for field in PolicyCounts.__struct_fields__:
            yield _labelled(
                CounterMetricFamily(
                    POLICY_PREFIX + field,
                    f"Answered requests by policy: {field.replace('_', ' ')}.",
                    labels=("policy",),
                ),
                (((policy,), getattr(counts, field)) for policy, counts in ledger.policies.items()),
            )

    def _workers(self) -> Iterator[Metric]:
        workers = self._fleet.workers
        yield _labelled(
            GaugeMetricFamily(WORKER_UP, "Whether the worker takes requests.", labels=("worker",)),
            (((worker.id,), worker.up) for worker in workers),
        )
        yield _labelled(
            CounterMetricFamily(PROBES_FAILED, "Probes that the worker failed.", labels=("worker",)),
            (((worker.id,), worker.probes_failed) for worker in workers),
        )
        loads = self._fleet.router.loads()
        for name, text, field in (
            (OPEN_REQUESTS, "Requests that have not ended.", "requests"),
            (QUEUED_TOKENS, "Tokens sent and not computed yet.", "queued"),
            (DECODE_TOKENS, "Tokens of the prompts whose answers are being produced.", "decode"),
        ):
            yield _labelled(
                GaugeMetricFamily(name, text, labels=("worker", "rank")),
                (((worker, str(rank)), getattr(load, field)) for (worker, rank), load in loads.items()),
            )

    def _sources(self) -> Iterator[Metric]:
        states = [
            ((worker.id, str(rank or 0)), state)
            for worker in self._fleet.workers
            for rank, state in self._fleet.source_states(worker).items()
        ]
        yield _labelled(
            GaugeMetricFamily(SOURCE_STATE, "1 for the state of the event source.", labels=("worker", "rank", "state")),
            (((*labels, state.state), 1) for labels, state in states),
        )
        for field in SourceCounters.__struct_fields__:
            if field != "transitions":
                yield _labelled(
                    CounterMetricFamily(
                        SOURCE_PREFIX + field,
                        f"Of the event source: {field.replace('_', ' ')}.",
                        labels=("worker", "rank"),
                    ),
                    ((labels, getattr(state.counters, field)) for labels, state in states),
                )
        yield _labelled(
            CounterMetricFamily(
                SOURCE_TRANSITIONS, "Changes of the source's state.", labels=("worker", "rank", "transition")
            ),
            (
                ((*labels, transition), count)
                for labels, state in states
                for transition, count in state.counters.transitions.items()
            ),
        )

    def _index(self) -> Iterator[Metric]:
        stats = self._fleet.index.stats()
        yield GaugeMetricFamily(INDEX_BLOCKS, "Distinct blocks that anyone holds.", value=stats.blocks)
        yield GaugeMetricFamily(INDEX_MEMORY_BYTES, "Memory in use, estimated.", value=stats.memory_bytes)
        yield CounterMetricFamily(
            INDEX_IGNORED_BATCHES, "Batches that came for removed workers.", value=stats.ignored_batches
        )
        sources = [((source.worker, str(source.dp_rank or 0)), source) for source in stats.sources]
        yield _labelled(
            GaugeMetricFamily(HELD_BLOCKS, "Blocks held, in blocks of the engine.", labels=("worker", "rank", "tier")),
            (((*labels, tier), blocks) for labels, source in sources for tier, blocks in source.tiers.items()),
        )
        for field, text in (("pending", "wait for their parent"), ("parked", "are held without a known place")):
            yield _labelled(
                GaugeMetricFamily(f"{INDEX_PREFIX}{field}_blocks", f"Blocks that {text}.", labels=("worker", "rank")),
                ((labels, getattr(source, field)) for labels, source in sources),
            )
        for field, (unit, text) in _INDEX_COUNTERS.items():
            yield _labelled(
                CounterMetricFamily(f"{INDEX_PREFIX}{field}_{unit}", text, labels=("worker", "rank")),
                ((labels, getattr(source, field)) for labels, source in sources),
            )
        yield _labelled(
            CounterMetricFamily(SKIPPED_EVENTS, "Events that could not be used.", labels=("worker", "rank", "code")),
            (((*labels, code), count) for labels, source in sources for code, count in source.skipped.items()),
        )


def _labelled(
    family: CounterMetricFamily | GaugeMetricFamily, values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    for labels, value in values:
        family.add_metric(labels, value)
    return family
