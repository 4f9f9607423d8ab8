"""One engine as the service knows it."""

import time
from collections.abc import Mapping, Sequence

from kvevents.server.configuration.worker import Role, WorkerSettings
from kvevents.server.fleet.load import RankLoad
from kvevents.transport import Source


class Worker:
    """An engine: where it is, whether it answers, and what feeds the index from it.

    Attributes:
        settings: how it was described.
        id: its name in headers, answers and metrics.
        url: its base URL without a trailing slash.
        authorization: value of the header `authorization` for requests to it; None for none. A secret.
        max_in_flight: requests that it works on at once at most; None for no limit.
        up: whether it answers; only then it is chosen.
        reason: why it is up or down.
        is_draining: whether it gets no more requests, and leaves once those it works on have ended.
        events: why there is no source, while there is none.
        sources: where its events come from, one per rank.
        ranks: its data-parallel ranks.
        role: what it does where prefill and decode are apart; None where they are not.
        bootstrap_port: of a prefill worker.
        tells_of_itself: whether it has a `/server_info`.
        models_read: when it was asked for its models last, by the monotonic clock.
        is_discovered: whether its sources are known to be those of the engine that answers now.
        added: when it came, unix seconds.
        distrusted: why its events are not believed though they look complete; None while they are.
        breaks: how often its event connections broke, when it was asked last.
        probes: how many probes were sent since it was added.
        probes_failed: how many of them failed.
        failures_in_a_row: how many since the last one that did not.
        load_path: where it says how busy it is; None if that is not known, or nowhere.
        reported: what each rank said last of how busy it is.
        load_reads: how often it has said so.
        load_failures: how often it should have, and did not.
        served: the models that it says it serves.
        models: those that it may be asked for: those configured, else those that it says it serves.
        adapters: of those, the adapters, with the model that each belongs to.
    """

    def __init__(self, settings: WorkerSettings, *, worker_id: str | None = None) -> None:
        self.settings = settings
        self.id = worker_id or settings.worker_id
        self.url = settings.base_url
        self.authorization = None if settings.api_key is None else settings.api_key.authorization
        self.max_in_flight = settings.max_in_flight
        self.up = False
        self.reason = "not asked yet"
        self.is_draining = False
        self.events = "not asked yet"
        self.sources: Sequence[Source] = ()
        self.ranks = settings.ranks or 1
        self.role: Role | None = settings.role
        self.bootstrap_port = settings.bootstrap_port
        self.served: frozenset[str] = frozenset()
        self.models = frozenset(settings.models)
        self.adapters: Mapping[str, str] = {}
        self.tells_of_itself = False
        self.models_read = 0.0
        self.is_discovered = False
        self.added = time.time()
        self.distrusted: str | None = None
        self.breaks = 0
        self.probes = 0
        self.probes_failed = 0
        self.failures_in_a_row = 0
        self.load_path: str | None = None
        self.reported: Mapping[int, RankLoad] = {}
        self.load_reads = 0
        self.load_failures = 0

    def serve(self, models: frozenset[str]) -> None:
        """Take down what it says it serves."""
        self.served = models
        self.models = frozenset(self.settings.models) or models
