"""The engine's figures for Prometheus: every name is here."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvevents.caches import HiRadixCache
from kvevents.engine.rank import Rank


class _Figure(NamedTuple):
    name: str
    help: str
    read: Callable[[Rank], float]


_GAUGES = (
    _Figure("running_requests", "Requests in the running batch.", lambda rank: len(rank.scheduler.running)),
    _Figure("waiting_requests", "Requests in the queue.", lambda rank: len(rank.scheduler.waiting)),
    _Figure("kv_capacity_tokens", "KV cache, in tokens.", lambda rank: rank.scheduler.capacity),
    _Figure(
        "kv_used_tokens",
        "KV cache that is in use or cached, in tokens.",
        lambda rank: rank.scheduler.used,
    ),
)
_COUNTERS = (
    _Figure("steps", "Steps run.", lambda rank: rank.steps),
    _Figure("finished_requests", "Requests finished.", lambda rank: rank.finished_requests),
    _Figure("prefilled_tokens", "Prompt tokens computed.", lambda rank: rank.prefilled_tokens),
    _Figure("cached_tokens", "Prompt tokens of finished requests found cached.", lambda rank: rank.cached_tokens),
    _Figure("decoded_tokens", "Tokens computed in decode steps.", lambda rank: rank.decoded_tokens),
    _Figure(
        "retractions", "Requests sent back to the queue for lack of memory.", lambda rank: rank.scheduler.retractions
    ),
    _Figure(
        "event_batches",
        "Batches of cache events published.",
        lambda rank: 0 if rank.announcer.sequence is None else rank.announcer.sequence + 1,
    ),
    _Figure("dropped_event_batches", "Of them, dropped by a full queue.", lambda rank: rank.announcer.dropped),
)


class _RankCollector(Collector):
    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._ranks = ranks

    def collect(self) -> Iterator[Metric]:
        for figures, family in ((_GAUGES, GaugeMetricFamily), (_COUNTERS, CounterMetricFamily)):
            for figure in figures:
                metric = family(f"kvevents_engine_{figure.name}", figure.help, labels=["dp_rank"])
                for number, rank in enumerate(self._ranks):
                    metric.add_metric([str(number)], figure.read(rank))
                yield metric
        yield self._failures()

    def _failures(self) -> Metric:
        metric = CounterMetricFamily(
            "kvevents_engine_tier_failures",
            "Copies between tiers that failed or found no room.",
            labels=["dp_rank", "reason"],
        )
        for number, rank in enumerate(self._ranks):
            if isinstance(rank.cache, HiRadixCache):
                for reason, count in rank.cache.failures.items():
                    metric.add_metric([str(number), reason], count)
        return metric


def engine_registry(ranks: Sequence[Rank]) -> CollectorRegistry:
    """A registry that reads the ranks' figures when it is asked."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_RankCollector(ranks))
    return registry
