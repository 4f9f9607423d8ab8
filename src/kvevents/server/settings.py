"""How the service is set up."""

import hmac
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from kvevents.errors import ConfigError
from kvevents.transport import ConsumerKeys


class Secret:
    """A token that is compared in constant time and never printed."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        if not value:
            raise ConfigError("token: expected at least one character, got none")
        self._value = value.encode()

    def __repr__(self) -> str:
        return "Secret(...)"

    def matches(self, offered: bytes) -> bool:
        """Whether `offered` is the token; takes the same time wherever they differ."""
        return hmac.compare_digest(self._value, offered)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `create_app` needs to know. All defaults are safe for one machine.

    Attributes:
        workers: base URLs of the engines.
        policy: the routing policy to start with.
        block_size: tokens in a block of the index; None takes it from the engines.
        client_token: opens `/v1/*`; None leaves it open.
        admin_token: opens everything else but health; None leaves it open.
        allowed_hosts: hosts that workers added at run time may have, besides those of `workers`.
        keys: for engines that publish their events with keys.
        max_body_bytes: larger requests are refused.
        health_interval_s: time between two probes of a worker.
        probe_timeout_s: how long a probe or a discovery may take.
        connect_timeout_s: how long a connection to a worker may take before another one is tried.
        idle_timeout_s: how long a worker may send nothing before it counts as failed.
    """

    workers: tuple[str, ...] = ()
    policy: str = "kv"
    block_size: int | None = None
    client_token: Secret | None = None
    admin_token: Secret | None = None
    allowed_hosts: tuple[str, ...] = ()
    keys: ConsumerKeys | None = None
    max_body_bytes: int = 32 * 2**20
    health_interval_s: float = 2.0
    probe_timeout_s: float = 5.0
    connect_timeout_s: float = 5.0
    idle_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.block_size is not None and self.block_size < 1:
            raise ConfigError(f"block size: expected at least 1 token, got {self.block_size}")
        for name in ("max_body_bytes", "health_interval_s", "probe_timeout_s", "connect_timeout_s", "idle_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: expected more than 0, got {getattr(self, name)}")
        for url in self.workers:
            worker_address(url)

    @property
    def worker_hosts(self) -> frozenset[str]:
        """Hosts that a worker may have."""
        return frozenset(self.allowed_hosts).union(worker_address(url)[0] for url in self.workers)


def worker_address(url: str) -> tuple[str, int]:
    """Host and port of a worker's base URL.

    Raises:
        ConfigError: not a plain http(s) base URL: another scheme, a user, a path or a query in it.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise ConfigError(f"worker URL: expected http://host:port: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError("worker URL: expected http://host:port, got one with a user or password in it")
    is_plain = not (parts.path.strip("/") or parts.query or parts.fragment)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not is_plain:
        raise ConfigError(f"worker URL: expected http://host:port, got {url!r}")
    return parts.hostname, port


def token_from(environment: Mapping[str, str], name: str) -> Secret | None:
    """The token in the variable `name`, or in the file that `name`_FILE names; None when neither is set.

    Raises:
        ConfigError: both are set, the file cannot be read, or the token is empty.
    """
    value, path = environment.get(name), environment.get(f"{name}_FILE")
    if value is not None and path is not None:
        raise ConfigError(f"{name}: expected the token or a file, got both {name} and {name}_FILE")
    if path is not None:
        try:
            value = Path(path).read_text().strip()
        except OSError as error:
            raise ConfigError(f"{name}_FILE: cannot read {path}: {error.strerror}") from None
    if value == "":
        raise ConfigError(f"{name}: expected a token, got an empty one")
    return None if value is None else Secret(value)


def check_binding(host: str, settings: Settings) -> None:
    """Refuse to listen beyond this machine without both tokens.

    Raises:
        ConfigError: `host` is not a loopback address and a token is missing.
    """
    missing = [
        name
        for name, token in (
            ("KVEVENTS_CLIENT_TOKEN", settings.client_token),
            ("KVEVENTS_ADMIN_TOKEN", settings.admin_token),
        )
        if token is None
    ]
    if missing and not _is_loopback(host):
        raise ConfigError(
            f"--host {host} is reachable from other machines: set {' and '.join(missing)} (or the same name with "
            f"_FILE), or listen on 127.0.0.1"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
