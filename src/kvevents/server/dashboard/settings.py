"""How what is shown is kept and sent."""

import msgspec

from kvevents.errors import ConfigError


class DashboardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the figures over time, of the stream and of the page. `[dashboard]` in the configuration file.

    Attributes:
        tick_s: seconds between two looks at the figures: how often the stream tells changes.
        fine_buckets: seconds that figures are kept at one second each.
        coarse_bucket_s: seconds that are summed to one bucket for the long view.
        coarse_buckets: such buckets that are kept.
        decisions_per_s: decisions that are explained on the stream at most; the others are counted.
        decisions_kept: explained decisions that a new reader is told.
        log_entries: changes of state, gaps and recoveries that are kept.
        stream_clients: readers of `GET /stream` at once; one more is answered 503.
        stream_frames: messages that wait for a slow reader; with one more they are dropped, and it starts anew.
        stream_stall_s: seconds after which a reader that takes nothing is let go.
        stream_longest_s: seconds after which a reader has to come back, so that whoever may not read any more cannot.
        heartbeat_s: seconds of silence after which the stream says that it is alive.
        trails: answered prompts by which the hits of shared prefixes are counted.
        known_blocks: blocks of prompts that the all-knowing cache remembers; the oldest are forgotten.
    """

    tick_s: float = 1.0
    fine_buckets: int = 600
    coarse_bucket_s: int = 10
    coarse_buckets: int = 2160
    decisions_per_s: float = 10.0
    decisions_kept: int = 100
    log_entries: int = 500
    stream_clients: int = 64
    stream_frames: int = 64
    stream_stall_s: float = 30.0
    stream_longest_s: float = 900.0
    heartbeat_s: float = 15.0
    trails: int = 4096
    known_blocks: int = 524_288

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not value > 0:
                raise ConfigError(f"dashboard.{name}: expected more than 0, got {value}")
