"""Where the events of one worker (or one of its ranks) come from."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal, TypeAlias

from kvevents.errors import ConfigError
from kvevents.index import GroupSpec
from kvevents.transport.endpoints import Endpoint, rank_endpoint
from kvevents.transport.security import ConsumerKeys

Residency: TypeAlias = Literal["counted", "set"]


@dataclass(frozen=True, slots=True)
class Source:
    """One publisher of events: a worker, or one data-parallel rank of it.

    Endpoints are those of this very rank (`rank_sources` derives them from the first rank's). A wildcard
    host (`*`, `0.0.0.0`, `[::]`) is taken as loopback where it is connected to.

    Attributes:
        worker_id: the worker's name, the same for all of its ranks.
        endpoint: the live socket, `tcp://host:port`, `ipc://path` or `inproc://name`.
        replay_endpoint: the socket that repeats batches; without one a gap cannot be repaired.
        snapshot: whether the publisher offers snapshots on its replay socket. True: a late joiner asks for one first.
            None: not known; it is asked for where a replay is not enough. False: never asked for.
        dp_rank: the rank to take where a batch names none; None leaves it as the batches say.
        topic: only topics with this prefix are received; empty receives all.
        bind: True where the publisher connects and this side has to bind (vLLM with a concrete host
            such as `tcp://127.0.0.1:5557`); None and False connect.
        block_size: tokens in a block, for whoever registers the worker; None if not known.
        residency: `counted`, or `set` for engines that announce blocks again (vLLM's full report mode).
        groups: the KV cache groups of a hybrid model, by the number that events give them; empty if not known.
        keys: for a publisher that has keys: who we are to it, and whom we believe; None: in the clear.

    Raises:
        ConfigError: for a setting that cannot work; the message says what to write instead.
    """

    worker_id: str
    endpoint: str
    _: KW_ONLY
    replay_endpoint: str | None = None
    snapshot: bool | None = None
    dp_rank: int | None = None
    topic: str = ""
    bind: bool | None = None
    block_size: int | None = None
    residency: Residency = "counted"
    groups: tuple[GroupSpec, ...] = ()
    keys: ConsumerKeys | None = None

    def __post_init__(self) -> None:
        where = f"source {self.worker_id!r}"
        if not isinstance(self.worker_id, str) or not self.worker_id:
            raise ConfigError(f"worker_id: expected a name, got {self.worker_id!r}")
        self._check_endpoints(where)
        if self.dp_rank is not None and (not isinstance(self.dp_rank, int) or self.dp_rank < 0):
            raise ConfigError(f"{where}: expected dp_rank to be None or 0 and more, got {self.dp_rank!r}")
        if not isinstance(self.topic, str):
            raise ConfigError(f"{where}: expected topic to be a string, got {self.topic!r}")
        if self.block_size is not None and (not isinstance(self.block_size, int) or self.block_size < 1):
            raise ConfigError(f"{where}: expected block_size to be None or 1 and more, got {self.block_size!r}")
        if self.residency not in {"counted", "set"}:
            raise ConfigError(f"{where}: expected residency 'counted' or 'set', got {self.residency!r}")

    def _check_endpoints(self, where: str) -> None:
        live = Endpoint.parse(self.endpoint)
        keys: object = self.keys
        if isinstance(keys, ConsumerKeys):
            keys.check(self.endpoint, self.replay_endpoint)
        elif keys is not None:
            kind = type(keys).__name__  # not what it is: it may be a key itself
            raise ConfigError(f"{where}: expected keys to be ConsumerKeys, which name files, got a {kind}")
        if not self.bind:
            live.to_connect()
        if self.replay_endpoint is not None:
            Endpoint.parse(self.replay_endpoint).to_connect()
            if self.replay_endpoint == self.endpoint:
                raise ConfigError(
                    f"{where}: the live and the replay endpoint are both {self.endpoint}; they are two sockets"
                )
        elif self.snapshot:
            raise ConfigError(
                f"{where}: expected a replay_endpoint, which snapshot=True needs: they are asked for there"
            )


def rank_sources(
    worker_id: str,
    endpoint: str,
    ranks: int,
    *,
    replay_endpoint: str | None = None,
    snapshot: bool | None = None,
    topic: str = "",
    bind: bool | None = None,
    block_size: int | None = None,
    residency: Residency = "counted",
    groups: tuple[GroupSpec, ...] = (),
    keys: ConsumerKeys | None = None,
) -> list[Source]:
    """One source per data-parallel rank, given the endpoints of rank 0.

    Raises:
        ConfigError: as `Source`, and if a rank's port would be above 65,535.
    """
    return [
        Source(
            worker_id,
            rank_endpoint(endpoint, rank),
            replay_endpoint=None if replay_endpoint is None else rank_endpoint(replay_endpoint, rank),
            snapshot=snapshot,
            dp_rank=rank,
            topic=topic,
            bind=bind,
            block_size=block_size,
            residency=residency,
            groups=groups,
            keys=keys,
        )
        for rank in range(ranks)
    ]
