"""Metrics of the process: is the router itself the bottleneck?"""

import asyncio
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from kvevents._core import __version__
from kvevents.server.metrics.family import Family, counter, gauge, histogram, labels
from kvevents.server.metrics.histogram import Histogram

if TYPE_CHECKING:
    from kvevents.server.service import Service

LAG_INTERVAL_S = 0.5

BUILD = gauge(
    "build_info", "Always 1; the labels say what runs.", "Compare with what was deployed.", "version", "python"
)
LAG = histogram(
    "event_loop_lag_seconds",
    "How much later than asked the router's event loop woke up; looked at twice a second.",
    "Every request waits that long. Above some milliseconds: the router's CPU is the limit, or a long prompt is read "
    "as text.",
)
SPANS = {
    field: counter(name, meaning, advice)
    for field, name, meaning, advice in (
        (
            "spans_recorded",
            "trace_spans_recorded",
            "Spans of traced requests.",
            "Follows traffic and the sample ratio.",
        ),
        (
            "spans_exported",
            "trace_spans_exported",
            "Spans that the collector took.",
            "Falls behind those recorded: spans wait, or were too many to wait; lower `sample_ratio`.",
        ),
        (
            "spans_failed",
            "trace_spans_failed",
            "Spans given up on, since the collector did not take them.",
            "The collector is away or refuses them: the router's log says which. Requests are not harmed.",
        ),
    )
}
PROCESS = tuple(
    Family(name, kind, (), meaning, advice)  # type: ignore[arg-type]  # a literal in a tuple
    for name, kind, meaning, advice in (
        (
            "process_cpu_seconds_total",
            "counter",
            "CPU time of the router.",
            "A rate near 1: the router is the bottleneck; run more of them.",
        ),
        (
            "process_resident_memory_bytes",
            "gauge",
            "Memory of the router.",
            "Index and bodies in flight; compare with kvevents_index_memory_bytes and kvevents_buffered_body_bytes.",
        ),
        ("process_virtual_memory_bytes", "gauge", "Address space of the router.", "No measure of memory in use."),
        (
            "process_start_time_seconds",
            "gauge",
            "When the router started, in seconds since 1970.",
            "Changes without a deployment: it was killed; look for memory limits.",
        ),
        (
            "process_open_fds",
            "gauge",
            "Open file descriptors.",
            "Two for each request in flight, some for each worker. Near the maximum: raise the limit (LimitNOFILE).",
        ),
        ("process_max_fds", "gauge", "The limit of open file descriptors.", "See process_open_fds."),
    )
)


class Process:
    """What the router's process uses, and how late its event loop is.

    Attributes:
        loop_lag_seconds: how much later than asked the event loop woke up.
    """

    def __init__(self) -> None:
        self.loop_lag_seconds = Histogram(LAG, (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0))
        self._timer: asyncio.TimerHandle | None = None
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

    def start(self) -> None:
        """Begin to look at the lateness of the running loop."""
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + LAG_INTERVAL_S
        self._timer = self._loop.call_at(self._due, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self.loop_lag_seconds.observe(max(0.0, self._loop.time() - self._due))
        self.start()

    def render(self, service: "Service") -> Iterator[str]:
        """All lines, family by family."""
        yield BUILD.render([(labels(version=__version__, python=platform.python_version()), 1)])
        yield self.loop_lag_seconds.render()
        for field, family in SPANS.items():
            yield family.render([("", getattr(service.telemetry.counters, field))])
        yield generate_latest(self._registry).decode()


FAMILIES = (BUILD, LAG, *SPANS.values(), *PROCESS)
