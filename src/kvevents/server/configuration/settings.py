"""Everything the router is told: one section for each of its parts."""

from collections import Counter

import msgspec

from kvevents.errors import ConfigError
from kvevents.routing.settings import RoutingSettings
from kvevents.server.configuration.events import EventsSettings
from kvevents.server.configuration.fleet import FleetSettings
from kvevents.server.configuration.listen import ListenSettings, is_loopback
from kvevents.server.configuration.security import SecuritySettings
from kvevents.server.configuration.worker import DISCOVER, NO_EVENTS, WorkerSettings, worker_address
from kvevents.server.dashboard.settings import DashboardSettings
from kvevents.server.prompts.settings import PromptSettings
from kvevents.server.proxy.settings import ProxySettings
from kvevents.server.telemetry.settings import TelemetrySettings


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the router is told. All defaults are safe for one machine.

    A field is a section of the file, and the docstring of its type is that section's documentation: whoever adds a
    field there has documented it, in the file `docs/serve.toml` too.

    Attributes:
        listen: where the router listens.
        workers: an engine that takes requests, `[[worker]]` in the file, once for each.
        fleet: how workers are watched.
        events: how workers' cache events are received.
        routing: how workers are chosen.
        proxy: how requests are passed on.
        prompts: how prompts become token ids.
        dashboard: how what the page shows is kept and sent.
        security: who may do what.
        telemetry: traces and logs.

    Raises:
        ConfigError: two workers with one id or URL, or one that is the router itself.
    """

    listen: ListenSettings = ListenSettings()
    workers: tuple[WorkerSettings, ...] = msgspec.field(default=(), name="worker")
    fleet: FleetSettings = FleetSettings()
    events: EventsSettings = EventsSettings()
    routing: RoutingSettings = RoutingSettings()
    proxy: ProxySettings = ProxySettings()
    prompts: PromptSettings = PromptSettings()
    dashboard: DashboardSettings = DashboardSettings()
    security: SecuritySettings = SecuritySettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    def __post_init__(self) -> None:
        for what, values in (
            ("id", [worker.worker_id for worker in self.workers]),
            ("url", [worker.base_url for worker in self.workers]),
        ):
            twice = [value for value, count in Counter(values).items() if count > 1]
            if twice:
                raise ConfigError(f"[[worker]] {what}: expected each one once, got {twice[0]!r} more often")
        for worker in self.workers:
            self.refuse_itself(worker)
            if self.events.jetstream is not None and worker.events not in {DISCOVER, NO_EVENTS}:
                raise ConfigError(
                    f"[[worker]] events: expected {DISCOVER!r} or {NO_EVENTS!r} beside [events.jetstream], which has "
                    f"everyone's, got {worker.events!r}"
                )

    def refuse_itself(self, worker: WorkerSettings) -> None:
        """Refuse a worker that is this router, as far as addresses tell.

        Raises:
            ConfigError: it is.
        """
        host, port = worker_address(worker.url)
        listen = self.listen
        is_here = host == listen.host or (is_loopback(host) and (listen.is_loopback or listen.is_wildcard))
        if port == listen.port and is_here:
            raise ConfigError(f"worker {worker.worker_id}: expected an engine, got the router's own address")

    @property
    def worker_hosts(self) -> frozenset[str]:
        """Hosts that a worker, or what its events come from, may have."""
        return frozenset(host.lower() for host in self.security.worker_hosts).union(
            *(worker.hosts for worker in self.workers)
        )
