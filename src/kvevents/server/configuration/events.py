"""How workers' cache events are received."""

import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvevents.errors import ConfigError
from kvevents.transport import ConsumerKeys, DeliverySettings

if TYPE_CHECKING:
    from kvevents.transport.jetstream import JetStreamSettings


class JetStreamEvents(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet's log on NATS JetStream as the source of all events; workers take their requests over HTTP all the same.

    What is not given comes from the variables KVEVENTS_NATS_*, else it is as `JetStreamSettings` has it.

    Attributes:
        servers: addresses of the broker, or of several of a cluster: `nats://host:port`.
        fleet: the fleet's name.
        creds: a .creds file (JWT and seed).
        nkey: a file with an nkey seed.
        user: a user's name.
        password_file: a file with the user's password, or with a token if there is no user.
        ca: certificates to trust, PEM; turns TLS on.
        certificate: the router's own certificate, PEM; turns TLS on.
        key: its key, PEM.
        tls: use TLS with the system's trust.
        snapshot_every_s: save a snapshot of the index so often, unless another consumer has; by default never.
        grace_s: how long a lost worker's blocks are kept.

    Raises:
        ConfigError: a value that cannot work.
    """

    servers: tuple[str, ...] | None = None
    fleet: str | None = None
    creds: Path | None = None
    nkey: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    tls: bool | None = None
    snapshot_every_s: float | None = None
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        if self.snapshot_every_s is not None and not self.snapshot_every_s > 0:
            raise ConfigError(f"snapshot_every_s: expected more than 0, got {self.snapshot_every_s}")
        if not self.grace_s >= 0:
            raise ConfigError(f"grace_s: expected 0 or more, got {self.grace_s}")

    def settings(self, environment: Mapping[str, str]) -> "JetStreamSettings":
        """The broker and the fleet, with what the environment adds.

        Raises:
            ConfigError: the extra is missing, or a value cannot work.
        """
        if importlib.util.find_spec("nats") is None:
            raise ConfigError("jetstream: needs nats-py, which is not installed: pip install 'kvevents[nats]'")
        from kvevents.transport.jetstream import JetStreamSettings  # noqa: PLC0415 (an extra)

        base = JetStreamSettings.from_environment(environment)
        names = ("creds", "nkey", "user", "password_file", "ca", "certificate", "key", "tls")
        access = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        given = {name: getattr(self, name) for name in ("servers", "fleet") if getattr(self, name) is not None}
        return dataclasses.replace(base, access=dataclasses.replace(base.access, **access), **given)


class EventsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How workers' cache events are received.

    Attributes:
        keys: a file of `kvevents keys` that ends in .key_secret, of a consumer that the engines list; for workers that
            have no other.
        publisher_key: the publishers' public key; by default `publisher.key` beside `keys`.
        jetstream: a fleet's log on NATS JetStream as the source of all events.
        delivery: times and limits of receiving.

    Raises:
        ConfigError: values that contradict each other.
    """

    keys: Path | None = None
    publisher_key: Path | None = None
    jetstream: JetStreamEvents | None = None
    delivery: DeliverySettings = DeliverySettings()

    def __post_init__(self) -> None:
        if self.publisher_key is not None and self.keys is None:
            raise ConfigError("publisher_key: expected keys beside it, got none")
        if self.keys is not None and self.jetstream is not None:
            raise ConfigError("keys: expected none beside jetstream, whose access has settings of its own")

    def consumer_keys(self, own: Path | None = None, publisher: Path | None = None) -> ConsumerKeys | None:
        """The keys to read a worker's events with: its own files, else those for all.

        Raises:
            ConfigError: a file that cannot be used.
        """
        if own is None:
            own, publisher = self.keys, self.publisher_key
        return None if own is None else ConsumerKeys(own, publisher)
