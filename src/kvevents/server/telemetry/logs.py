"""Log lines on stderr: for people, or as JSON for machines.

A line about a request says which by `extra={"request_id": ...}`.
"""

import datetime
import logging
import re
import sys
from typing import TextIO

import msgspec

from kvevents.server.telemetry.access_line import REQUEST
from kvevents.server.telemetry.repeats import RepeatFilter
from kvevents.server.telemetry.settings import TelemetrySettings

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_encode = msgspec.json.Encoder(enc_hook=str).encode


class TextFormatter(logging.Formatter):
    """`kvevents: what happened (request ID)`, and the traceback of an error below it.

    Control characters are escaped: what a client or a worker sent makes no line of its own.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name is logging's
        request_id = getattr(record, "request_id", None)
        suffix = "" if request_id is None else f" (request {request_id})"
        return f"kvevents: {_CONTROL.sub(_escaped, record.message)}{suffix}"


def _escaped(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode()


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `ts` (RFC 3339, UTC), `level`, `logger`, `message`, then what is known of the request."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        facts = getattr(record, "facts", None)
        line: dict[str, object] = {
            "ts": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage() if facts is None else REQUEST,
        }
        if (request_id := getattr(record, "request_id", None)) is not None:
            line["request_id"] = request_id
        if facts is not None:
            line |= facts
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _encode(line).decode()


def set_up_logging(settings: TelemetrySettings, *, stream: TextIO | None = None) -> RepeatFilter:
    """Send the log of this process to stderr, in place of what was set up before.

    Of other packages only warnings are lines, whatever the level: what they say below that is not ours to vouch for.

    Args:
        settings: format, level, and how often a line may come again.
        stream: where it goes instead.

    Returns:
        What counts the lines that were left out.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    repeats = RepeatFilter(settings.log_repeat_s)
    handler.addFilter(repeats)
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
    logging.getLogger("kvevents").setLevel(level)
    return repeats
