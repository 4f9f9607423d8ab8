"""How workers are watched."""

import math

import msgspec

from kvevents.errors import ConfigError


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How workers are watched, and the index of what they hold.

    Attributes:
        block_size: tokens in a block of the index; by default taken from the engines.
        probe_interval_s: time between two probes of a worker.
        probe_jitter: the part of that time by which it varies, so that workers are not all asked at once.
        probe_timeout_s: how long a probe or a discovery may take.
        read_load: ask the engines for their own load with each probe (SGLang's /get_load, /metrics).
        ready_grace_s: how long after the start, or after a worker came, readiness waits for its picture to be complete.

    Raises:
        ConfigError: a value that cannot work.
    """

    block_size: int | None = None
    probe_interval_s: float = 2.0
    probe_jitter: float = 0.2
    probe_timeout_s: float = 5.0
    read_load: bool = True
    ready_grace_s: float = 30.0

    def __post_init__(self) -> None:
        if self.block_size is not None and self.block_size < 1:
            raise ConfigError(f"block_size: expected at least 1 token, got {self.block_size}")
        for name in ("probe_interval_s", "probe_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name}: expected seconds above 0, got {getattr(self, name)}")
        if not 0 <= self.probe_jitter < 1:
            raise ConfigError(f"probe_jitter: expected 0 or more and less than 1, got {self.probe_jitter}")
        if not self.ready_grace_s >= 0:
            raise ConfigError(f"ready_grace_s: expected 0 or more, got {self.ready_grace_s}")
