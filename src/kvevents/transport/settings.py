"""Times and limits of delivery."""

from dataclasses import dataclass

from kvevents.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """How patient a subscriber is and how much it keeps; the defaults suit a data centre.

    Attributes:
        replay_timeout_s: a replay request that brings nothing for so long has failed.
        idle_probe_s: after so long without a batch the replay socket is asked whether one was lost.
        probe_timeout_s: an answer to that question that takes longer is none, and the source `degraded` until there
            is one.
        settle_s: the same question once, soon after a recovery: a subscription takes a moment to arrive.
        retry_max_s: a silent replay socket is asked again at growing intervals, this the longest.
        snapshot_timeout_s: how long a publisher may take to take a snapshot.
        max_snapshot_bytes: a larger snapshot is refused, before memory is taken for it.
        lost_grace_s: what a source holds is dropped when it has been lost (or never reached) for so long; infinite:
            never.
        hold_batches: batches kept while a replay runs; what comes above is asked for again.
        hold_bytes: the same limit in bytes.
        window: recent sequence numbers whose bytes are recognised, to tell duplicates from restarts.
        max_message_bytes: a peer that sends a longer message is disconnected (`ZMQ_MAXMSGSIZE`).
        receive_hwm: messages that the live and the replay socket queue before the publisher begins to drop.
        heartbeat_s: interval of ZMTP heartbeats; a peer silent for three of them is taken as gone.
    """

    replay_timeout_s: float = 5.0
    idle_probe_s: float = 0.75
    probe_timeout_s: float = 1.0
    settle_s: float = 0.2
    retry_max_s: float = 60.0
    snapshot_timeout_s: float = 30.0
    max_snapshot_bytes: int = 1 << 30
    lost_grace_s: float = 60.0
    hold_batches: int = 100_000
    hold_bytes: int = 256 << 20
    window: int = 1_024
    max_message_bytes: int = 64 << 20
    receive_hwm: int = 100_000
    heartbeat_s: float = 5.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"{name}: expected a number above 0, got {value!r}")

    @property
    def detection_bound_s(self) -> float:
        """A source with a replay socket says `live` no longer than this after its picture has become wrong."""
        return self.idle_probe_s + self.probe_timeout_s
