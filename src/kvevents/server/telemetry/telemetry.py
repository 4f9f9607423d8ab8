"""The one object that the rest of the router tells about requests."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvevents.server.telemetry.access_line import AccessLine, access_log
from kvevents.server.telemetry.both import Both
from kvevents.server.telemetry.counters import TelemetryCounters
from kvevents.server.telemetry.settings import TelemetrySettings
from kvevents.server.telemetry.trace import NO_TRACE, Headers, RequestTrace

if TYPE_CHECKING:
    from kvevents.server.telemetry.spans import Spans

_ACCESS_LEVELS: Mapping[str, int | None] = {"off": None, "debug": logging.DEBUG, "info": logging.INFO}


class Telemetry:
    """Traces and the access log.

    Args:
        settings: of this part.

    Attributes:
        counters: of spans.
    """

    def __init__(self, settings: TelemetrySettings) -> None:
        self.counters = TelemetryCounters()
        self._access_level = _ACCESS_LEVELS[settings.access_log]
        self._spans = None if settings.otlp_endpoint is None else self._make_spans(settings, settings.otlp_endpoint)

    def request(self, path: str, headers: Headers, *, request_id: str) -> RequestTrace:
        """A request begins: call this once its head is read.

        Args:
            path: without its query.
            headers: of the request; only `traceparent` and `tracestate` are read.
            request_id: that the answer will carry.

        Returns:
            What to tell about it. When nobody listens that is an object whose methods do nothing.
        """
        line = (
            AccessLine(self._access_level, path, request_id)
            if self._access_level is not None and access_log.isEnabledFor(self._access_level)
            else None
        )
        if self._spans is None:
            return NO_TRACE if line is None else line
        spans = self._spans.request(path, headers, request_id)
        return spans if line is None else Both(spans, line)

    def close(self) -> None:
        """Send the spans that wait; blocks for seconds when the collector does not answer."""
        if self._spans is not None:
            self._spans.close()

    def _make_spans(self, settings: TelemetrySettings, endpoint: str) -> "Spans":
        from kvevents.server.telemetry.spans import Spans  # noqa: PLC0415  an extra, imported when asked for

        return Spans(
            endpoint,
            sample_ratio=settings.sample_ratio,
            service_name=settings.service_name,
            counters=self.counters,
        )
