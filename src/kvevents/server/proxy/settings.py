"""How requests are passed on."""

import msgspec

from kvevents.errors import ConfigError


class ProxySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are passed on.

    Attributes:
        max_body_bytes: larger requests are refused.
        connect_timeout_s: how long a connection to a worker may take before another one is tried.
        idle_timeout_s: how long a worker may send nothing before it counts as failed.

    Raises:
        ConfigError: a value that cannot work.
    """

    max_body_bytes: int = 32 * 2**20
    connect_timeout_s: float = 5.0
    idle_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "connect_timeout_s", "idle_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: expected more than 0, got {getattr(self, name)}")
