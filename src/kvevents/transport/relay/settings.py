"""How a relay coalesces, and how much it keeps."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from kvevents.coalescing import Level
from kvevents.errors import ConfigError
from kvevents.wire import Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """Times and limits of a relay.

    Attributes:
        window_s: how long the first event of a window waits for others.
        coalesce: how far events of a window are merged.
        dialect: how batches are written; `auto`: as the source's, told by its first stores.
        batch_bytes: a window that has so many bytes is sent at once.
        pending_bytes: with so many bytes unsent the relay stops to read from the source until they are sent.
        replay_bytes: recent batches that are kept as they were sent, in bytes; the oldest go first, into the
            compacted log.
        replay_s: those that are older go too.
        replay_batches: so many recent ones stay, whatever their age.
        hwm: messages queued for one slow consumer before ZMQ drops for it.
        unvouched_s: when a source is not live for so long, consumers are shown a missing number (see `Stream`).
        state_bytes: what consumers should hold may take so much room in the compacted log. A rank that goes beyond is
            cleared, at consumers too, and counted.
    """

    window_s: float = 0.02
    coalesce: Level = "chain"
    dialect: Dialect | Literal["auto"] = "auto"
    batch_bytes: int = 1 << 20
    pending_bytes: int = 16 << 20
    replay_bytes: int = 64 << 20
    replay_s: float = 600.0
    replay_batches: int = 1_024
    hwm: int = 100_000
    unvouched_s: float = 0.5
    state_bytes: int = 2 << 30

    def __post_init__(self) -> None:
        if not 0 <= self.window_s <= 60:
            raise ConfigError(f"window: expected 0 to 60 seconds, got {self.window_s!r}")
        for name, choices in (("coalesce", get_args(Level)), ("dialect", ("auto", *get_args(Dialect)))):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name}: expected one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name in (
            "batch_bytes",
            "pending_bytes",
            "replay_bytes",
            "replay_s",
            "replay_batches",
            "hwm",
            "unvouched_s",
            "state_bytes",
        ):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ConfigError(f"{name}: expected a number above 0, got {value!r}")
