"""Where the broker is, what the fleet is called, and the limits of what is kept there."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

from kvevents.errors import ConfigError
from kvevents.transport.jetstream.access import NatsAccess
from kvevents.transport.jetstream.names import Names

_SCHEMES = {"nats", "tls", "ws", "wss"}
_POSITIVE = (
    *("max_age_s", "max_bytes", "max_snapshot_bytes", "duplicate_window_s", "lease_s"),
    *("connect_timeout_s", "retry_s", "retry_max_s", "heartbeat_s", "replicas"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JetStreamSettings:
    """One fleet on one broker. Publishers and subscribers of a fleet should agree on all of it.

    Whoever comes first makes the stream, the registry and the object store with these limits; they are left alone if
    they are there (`nats stream edit` changes them).

    Attributes:
        servers: addresses of the broker, or of several of a cluster, tried in turn: `nats://host:port`, `tls://`, `ws://`.
        fleet: the workers that share a log.
        access: credentials and TLS.
        max_age_s: older batches leave the log.
        max_bytes: the oldest batches leave a log larger than this.
        max_snapshot_bytes: of one snapshot; the object store has room for two.
        duplicate_window_s: for so long the broker drops a message with an id that it has seen.
        lease_s: a worker that has not renewed its record for so long is lost.
        connect_timeout_s: to reach a server, and for each answer of the broker.
        retry_s: first pause after a failed attempt; it doubles.
        retry_max_s: the longest pause.
        heartbeat_s: how often the broker says that it lives; after three silent ones the connection is given up.
        replicas: copies of the log in a cluster.
        is_durable: keep the log on disk; False: in the broker's memory.

    Raises:
        ConfigError: a setting that cannot work.
    """

    servers: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    fleet: str = "default"
    access: NatsAccess = field(default_factory=NatsAccess)
    max_age_s: float = 6 * 3600.0
    max_bytes: int = 4 << 30
    max_snapshot_bytes: int = 512 << 20
    duplicate_window_s: float = 120.0
    lease_s: float = 6.0
    connect_timeout_s: float = 5.0
    retry_s: float = 0.1
    retry_max_s: float = 5.0
    heartbeat_s: float = 1.0
    replicas: int = 1
    is_durable: bool = True

    def __post_init__(self) -> None:
        Names(self.fleet)
        if not self.servers:
            raise ConfigError("servers: expected at least one address, got none")
        for server in self.servers:
            parts = urlsplit(server)
            if parts.username or parts.password:
                raise ConfigError(
                    f"servers: {parts.hostname}: credentials do not belong into an address, which is shown in"
                    " logs; set KVEVENTS_NATS_CREDS, _NKEY, or _USER and _PASSWORD_FILE"
                )
            if parts.scheme not in _SCHEMES or not parts.hostname:
                raise ConfigError(f"servers: expected nats://host:port, got {server!r}")
        for name in _POSITIVE:
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"{name}: expected a number above 0, got {value!r}")

    @property
    def names(self) -> Names:
        """What the fleet's things are called."""
        return Names(self.fleet)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Settings as the environment says, defaults for the rest.

        The variables are `KVEVENTS_NATS_SERVERS` (comma-separated), `KVEVENTS_FLEET`, `KVEVENTS_NATS_MAX_AGE_S`,
        `KVEVENTS_NATS_MAX_BYTES`, `KVEVENTS_NATS_LEASE_S`, `KVEVENTS_NATS_REPLICAS`, and those of `NatsAccess`.

        Raises:
            ConfigError: a value that cannot work; the message names the variable.
        """
        given: dict[str, Any] = {}
        if servers := environment.get("KVEVENTS_NATS_SERVERS"):
            given["servers"] = tuple(part.strip() for part in servers.split(",") if part.strip())
        for name, read in (("max_age_s", float), ("max_bytes", int), ("lease_s", float), ("replicas", int)):
            variable = f"KVEVENTS_NATS_{name.upper()}"
            if text := environment.get(variable):
                try:
                    given[name] = read(text)
                except ValueError:
                    raise ConfigError(f"{variable}: expected a number, got {text!r}") from None
        return cls(
            fleet=environment.get("KVEVENTS_FLEET") or "default",
            access=NatsAccess.from_environment(environment),
            **given,
        )
