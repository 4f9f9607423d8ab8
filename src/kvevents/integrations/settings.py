"""What the plugins do, as the environment says: engines pass on no settings of others."""

import difflib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, get_args

from kvevents.coalescing import Level
from kvevents.errors import ConfigError

_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}
_OURS = (
    "KVEVENTS_COALESCE",
    "KVEVENTS_KEYS_FILE",
    "KVEVENTS_RECORDER",
    "KVEVENTS_SNAPSHOT",
    "KVEVENTS_STATE_DIR",
    "KVEVENTS_VLLM",
    "KVEVENTS_WORKER_ID",
    "KVEVENTS_WORKER_URL",
    "KVEVENTS_ZMQ",
)
_BROKERS = (
    "KVEVENTS_FLEET",
    *(
        f"KVEVENTS_NATS_{name}"
        for name in (
            *("SERVERS", "CREDS", "NKEY", "USER", "PASSWORD", "PASSWORD_FILE", "TLS", "CA", "CERT", "KEY"),
            *("MAX_AGE_S", "MAX_BYTES", "LEASE_S", "REPLICAS"),
        )
    ),
)
_OF_COMMANDS = ("KVEVENTS_ADMIN_TOKEN", "KVEVENTS_CLIENT_TOKEN", "KVEVENTS_END_WITH_STDIN")
"""Not for a plugin, but no mistake where a router runs on the same machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """Settings of a plugin in an engine's process.

    Attributes:
        coalesce: how far the events of a batch are merged before it is published (`KVEVENTS_COALESCE`); every consumer
            can read all levels.
        recorder: record SGLang's events with our recorder (`KVEVENTS_RECORDER=1`).
        snapshot: keep an index of what the engine holds and offer snapshots of it on the replay socket, for
            subscribers of kvevents that come late (`KVEVENTS_SNAPSHOT=1`).
        zmq: publish on the engine's ZMQ endpoints (`KVEVENTS_ZMQ=0` turns that off).
        keys_file: a publisher's private file as `kvevents keys` makes it: ZMQ is encrypted, and only consumers in the
            folder `clients` beside it can read (`KVEVENTS_KEYS_FILE`).
        jetstream: publish into a fleet's log as well (`KVEVENTS_NATS_SERVERS` is set; see `JetStreamSettings`).
        stand_in: take the place of vLLM's publisher `zmq` (`KVEVENTS_VLLM=1`).
        worker_id: the worker's name in the fleet (`KVEVENTS_WORKER_ID`); None: the host's name and the endpoint.
        worker_url: where the worker takes requests, for routers of the fleet (`KVEVENTS_WORKER_URL`).
        state_dir: each process leaves a file there that says how its plugin is (`KVEVENTS_STATE_DIR`).

    Raises:
        ConfigError: neither ZMQ nor JetStream is on, or snapshots are and ZMQ is not.
    """

    coalesce: Level = "chain"
    recorder: bool = False
    snapshot: bool = False
    zmq: bool = True
    jetstream: bool = False
    stand_in: bool = False
    worker_id: str | None = None
    worker_url: str | None = None
    state_dir: Path | None = None
    keys_file: Path | None = None

    def __post_init__(self) -> None:
        if not self.zmq and not self.jetstream:
            raise ConfigError("KVEVENTS_ZMQ is off and KVEVENTS_NATS_SERVERS is not set: there is nowhere to publish")
        if self.snapshot and not self.zmq:
            raise ConfigError("KVEVENTS_SNAPSHOT offers snapshots on ZMQ's replay socket, and KVEVENTS_ZMQ is off")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Settings as the variables `KVEVENTS_*` say.

        Raises:
            ConfigError: a value that cannot work; the message names the variable.
        """
        levels: tuple[Level, ...] = get_args(Level)
        wanted = environment.get("KVEVENTS_COALESCE") or "chain"
        coalesce = next((level for level in levels if level == wanted), None)
        if coalesce is None:
            raise ConfigError(f"KVEVENTS_COALESCE: expected one of {', '.join(levels)}, got {wanted!r}")
        state_dir, keys_file = environment.get("KVEVENTS_STATE_DIR"), environment.get("KVEVENTS_KEYS_FILE")
        return cls(
            coalesce=coalesce,
            recorder=_switch(environment, "KVEVENTS_RECORDER", default=False),
            snapshot=_switch(environment, "KVEVENTS_SNAPSHOT", default=False),
            zmq=_switch(environment, "KVEVENTS_ZMQ", default=True),
            jetstream=bool(environment.get("KVEVENTS_NATS_SERVERS")),
            stand_in=_switch(environment, "KVEVENTS_VLLM", default=False),
            worker_id=environment.get("KVEVENTS_WORKER_ID") or None,
            worker_url=environment.get("KVEVENTS_WORKER_URL") or None,
            state_dir=Path(state_dir) if state_dir else None,
            keys_file=Path(keys_file) if keys_file else None,
        )

    def worker_name(self, endpoint: str) -> str:
        """The worker's name in the fleet: as given, or the host's and the endpoint's port or path."""
        return self.worker_id or f"{socket.gethostname()}:{endpoint.rpartition('/')[2].rpartition(':')[2]}"


def misspelt(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Variables that look like ours and are none, each with what was probably meant."""
    found = []
    for name in sorted(environment):
        if not name.startswith("KVEVENTS_") or name in (*_OURS, *_BROKERS, *_OF_COMMANDS):
            continue
        close = difflib.get_close_matches(name, [*_OURS, *_BROKERS], n=1)
        found.append(f"{name} is no setting of kvevents" + (f"; did you mean {close[0]}?" if close else ""))
    return found


def _switch(environment: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = environment.get(name)
    if value is None:
        return default
    if value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise ConfigError(f"{name}: expected 1 or 0, got {value!r}")
