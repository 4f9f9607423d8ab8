"""Where the router listens."""

import ipaddress
import math

import msgspec

from kvevents.errors import ConfigError

_WILDCARDS = frozenset({"0.0.0.0", "::", "[::]", ""})  # noqa: S104 (read here; bound only where the user wrote it)


class ListenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the router listens.

    Attributes:
        host: address to listen on; anything but loopback needs both tokens.
        port: port to listen on; 0 takes a free one.
        drain_s: seconds that open requests have to end after a signal; a second signal ends them at once.

    Raises:
        ConfigError: a value that cannot work.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port: expected 0 to 65535, got {self.port}")
        if not 0 <= self.drain_s < math.inf:
            raise ConfigError(f"drain_s: expected 0 seconds or more, got {self.drain_s}")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    @property
    def is_wildcard(self) -> bool:
        """Whether it listens on every address of this machine."""
        return self.host in _WILDCARDS


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
