"""What became of traces and log lines."""

import msgspec


class TelemetryCounters(msgspec.Struct):
    """Spans that were recorded, but neither exported nor failed, wait, or were too many to wait.

    Attributes:
        spans_recorded: ended in this process.
        spans_exported: taken by the collector.
        spans_failed: given up on, since the collector did not take them.
    """

    spans_recorded: int = 0
    spans_exported: int = 0
    spans_failed: int = 0
