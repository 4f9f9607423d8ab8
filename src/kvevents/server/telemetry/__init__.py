"""Traces and logs of the router."""

from kvevents.server.telemetry.counters import TelemetryCounters
from kvevents.server.telemetry.logs import set_up_logging
from kvevents.server.telemetry.settings import TelemetrySettings
from kvevents.server.telemetry.telemetry import Telemetry
from kvevents.server.telemetry.trace import NO_TRACE, AttemptTrace, RequestTrace

__all__ = [
    "NO_TRACE",
    "AttemptTrace",
    "RequestTrace",
    "Telemetry",
    "TelemetryCounters",
    "TelemetrySettings",
    "set_up_logging",
]
