"""The sockets on which an engine publishes its events, one pair a rank."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from kvevents.engine.config import KVEventsConfig
from kvevents.errors import TransportError
from kvevents.index import GroupSpec
from kvevents.transport import PublisherKeys, ZmqPublisher
from kvevents.transport.endpoints import Endpoint
from kvevents.transport.ports import settle_ports

_ATTEMPTS = 10


class EventSockets:
    """Publishers of all ranks, and what `/server_info` says of them.

    Args:
        config: where to publish.
        dp_size: ranks.

    Raises:
        ConfigError: an endpoint that cannot be read.
        TransportError: a socket that cannot be bound.
    """

    def __init__(self, config: KVEventsConfig, *, dp_size: int) -> None:
        wanted = [config.endpoint] + ([] if config.replay_endpoint is None else [config.replay_endpoint])
        is_open = any(parsed.transport == "tcp" and not parsed.port for parsed in map(Endpoint.parse, wanted))
        if not config.bind:
            Endpoint.parse(config.endpoint).to_connect()  # refuses a port that is left open
        for attempt in range(_ATTEMPTS):
            endpoints = settle_ports(wanted, dp_size)
            try:
                self.publishers = _open(config, dp_size, *endpoints)
                break
            except TransportError:
                # A port that we chose can be taken by another process before it is bound; one that the user
                # chose is the user's to free.
                if not is_open or attempt == _ATTEMPTS - 1:
                    raise
        self._config = config
        self._endpoints = endpoints

    def describe(self, *, block_size: int, groups: Sequence[GroupSpec] = ()) -> dict[str, object]:
        """The `kv_events` of server info, as SGLang advertises it; `endpoint` in place of host and port for ipc.

        `snapshot` is kvevents' own, and there where snapshots are offered.

        Args:
            block_size: tokens in a block.
            groups: the cache groups that events name, by number; none where they name none.
        """
        endpoint = Endpoint.parse(self._endpoints[0])
        description: dict[str, object] = {"publisher": self._config.publisher}
        if endpoint.transport == "tcp":
            description |= {"endpoint_host": endpoint.host, "endpoint_port_base": endpoint.port}
        else:
            description["endpoint"] = str(endpoint)
        description |= {"topic": self._config.topic, "block_size": block_size, "dp_size": len(self.publishers)}
        if len(self._endpoints) > 1:
            replay = Endpoint.parse(self._endpoints[1])
            if replay.transport == "tcp":
                description["replay_endpoint_port_base"] = replay.port
            else:
                description["replay_endpoint"] = str(replay)
            if self._config.snapshot:
                description["snapshot"] = True
        if groups:
            description["groups"] = groups
        return description

    def close(self) -> None:
        """Close all sockets; again is a no-op."""
        for publisher in self.publishers:
            publisher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _open(config: KVEventsConfig, dp_size: int, endpoint: str, replay: str | None = None) -> list[ZmqPublisher]:
    keys = None if config.keys is None else PublisherKeys(Path(config.keys))
    with contextlib.ExitStack() as opened:
        publishers = [
            opened.enter_context(
                ZmqPublisher(
                    endpoint,
                    replay_endpoint=replay,
                    snapshot="mirror" if config.snapshot and replay is not None else None,
                    topic=config.topic,
                    buffer_steps=config.buffer_steps,
                    hwm=config.hwm,
                    max_queue_size=config.max_queue_size,
                    dp_rank=rank,
                    bind=config.bind,
                    keys=keys,
                )
            )
            for rank in range(dp_size)
        ]
        opened.pop_all()
        return publishers
