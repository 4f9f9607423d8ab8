"""How the router tells what it does: traces and logs."""

from importlib.util import find_spec
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from kvevents.errors import ConfigError

PACKAGES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
"""Of the extra `otel`."""

Level = Literal["debug", "info", "warning", "error"]


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Traces and logs. What goes out has no prompts, no tokens of access, no salts.

    Attributes:
        otlp_endpoint: base URL of an OpenTelemetry collector (OTLP over HTTP, usually port 4318); None: no traces.
            Its credentials and certificates come by the environment, as `OTEL_EXPORTER_OTLP_HEADERS` and the like.
        sample_ratio: share of the requests that are traced, 0 to 1. A request whose `traceparent` says whether it is
            traced keeps to that.
        service_name: of the router in its traces.
        log_format: of the lines on stderr.
        log_level: from where on something is a line.
        access_log: at which level each request is a line.
        log_repeat_s: the same warning is a line once in this time; the next one says how often it came meanwhile.
    """

    otlp_endpoint: str | None = None
    sample_ratio: float = 1.0
    service_name: str = "kvevents"
    log_format: Literal["text", "json"] = "text"
    log_level: Level = "warning"
    access_log: Literal["off", "debug", "info"] = "debug"
    log_repeat_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.sample_ratio <= 1:
            raise ConfigError(f"sample_ratio: expected 0 to 1, got {self.sample_ratio}")
        if not self.service_name:
            raise ConfigError("service_name: expected a name, got none")
        if not self.log_repeat_s >= 0:
            raise ConfigError(f"log_repeat_s: expected 0 or more seconds, got {self.log_repeat_s}")
        if self.otlp_endpoint is not None:
            _check_endpoint(self.otlp_endpoint)
            missing = [package for package in PACKAGES if not _is_installed(package)]
            if missing:
                raise ConfigError(
                    f"otlp_endpoint: {' and '.join(missing)} is missing to make traces: pip install 'kvevents[otel]'"
                )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # not even what it is a part of
        return False


def _check_endpoint(url: str) -> None:
    expected = "otlp_endpoint: expected http://host:port"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"{expected}: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"{expected}, got one with a user or password in it: set OTEL_EXPORTER_OTLP_HEADERS in the environment"
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"{expected}, got {url!r}")
