"""One engine as the service knows it."""

from collections.abc import Sequence

from kvevents.server.configuration import WorkerSettings
from kvevents.transport import Source


class Worker:
    """An engine: where it is, whether it answers, and what feeds the index from it.

    Attributes:
        settings: how it was described.
        id: its name in headers, answers and metrics; `host:port` unless another was given.
        url: its base URL without a trailing slash.
        up: whether it answers; only then it is chosen.
        reason: why it is up or down.
        events: why there is no source, while there is none.
        sources: where its events come from, one per rank.
        ranks: its data-parallel ranks.
        models: the models it says it serves.
        is_discovered: whether its sources are known to be those of the engine that answers now.
        breaks: how often its event connections broke, when it was asked last.
        probes_failed: how many probes failed since it was added.
        failures_in_a_row: how many of them since the last one that did not.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.url = settings.base_url
        self.id = settings.worker_id
        self.up = False
        self.reason = "not asked yet"
        self.events = "not asked yet"
        self.sources: Sequence[Source] = ()
        self.ranks = 1
        self.models: frozenset[str] = frozenset()
        self.is_discovered = False
        self.breaks = 0
        self.probes_failed = 0
        self.failures_in_a_row = 0
