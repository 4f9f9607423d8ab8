"""The sockets of all streams of a relay."""

import logging
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from kvevents.errors import TransportError
from kvevents.transport.endpoints import Endpoint, rank_endpoint
from kvevents.transport.ports import settle_ports
from kvevents.transport.relay.outlet import Outlet
from kvevents.transport.relay.stream import Stream
from kvevents.transport.security import Doorkeeper, PublisherKeys
from kvevents.transport.sockets import new_context

_log = logging.getLogger(__name__)

_ATTEMPTS = 10

Key: TypeAlias = tuple[str, int | None]
"""Worker id and rank of a source."""

Endpoints: TypeAlias = tuple[str, str]
"""Where rank 0 of a worker is published and repeated."""


class Outlets:
    """Opens sockets worker by worker, each worker's ranks on ports in a row.

    Args:
        listen: where to publish and repeat the first worker's rank 0.
        remembered: where workers were before; those addresses are taken again where `listen` leaves the port open.
        topic: what all are published under; None: the topic of the source.
        hwm: messages queued for one slow consumer.
        keys: who may read; None: everybody.
    """

    def __init__(
        self,
        listen: Endpoints,
        *,
        remembered: Mapping[str, Endpoints],
        topic: str | None,
        hwm: int,
        keys: PublisherKeys | None = None,
    ) -> None:
        if keys is not None:
            keys.check(*listen)
        self.endpoints: dict[str, Endpoints] = {}
        self._by_key: dict[Key, Outlet] = {}
        self._listen = listen
        self._remembered = remembered
        self._topic = topic
        self._hwm = hwm
        self._keys = keys
        self._context = new_context()
        self._doorkeeper = None if keys is None else Doorkeeper(self._context, keys)
        self._ranks = 0  # of the workers so far

    @property
    def refused(self) -> int:
        """Handshakes of consumers whose key is not listed; any thread may ask."""
        return 0 if self._doorkeeper is None else self._doorkeeper.refused

    def __getitem__(self, key: Key) -> Outlet:
        return self._by_key[key]

    def open(self, worker_id: str, streams: Sequence[Stream]) -> Endpoints:
        """Binds the sockets of one more worker; where its rank 0 is.

        Raises:
            ConfigError: an endpoint that cannot be read, or with no room for all ranks.
            TransportError: one that cannot be bound.
        """
        ranks = 1 + max(stream.source.dp_rank or 0 for stream in streams)
        wanted = [_of_worker(endpoint, len(self.endpoints), self._ranks) for endpoint in self._listen]
        self._ranks += ranks
        remembered = self._remembered.get(worker_id, ("", ""))
        before = [old if _fits(old, new) else new for old, new in zip(remembered, wanted, strict=True)]
        is_open = any(parsed.transport == "tcp" and not parsed.port for parsed in map(Endpoint.parse, wanted))
        for attempt in range(_ATTEMPTS):
            live, replay = settle_ports(before if attempt == 0 else wanted, ranks)
            try:
                self._open(streams, live, replay)
            except TransportError as error:
                if not is_open or attempt == _ATTEMPTS - 1:
                    raise
                if before != wanted and attempt == 0:
                    _log.warning("the sockets that consumers know cannot be had again: %s", error)
            else:
                break
        self.endpoints[worker_id] = live, replay
        return live, replay

    def close(self) -> None:
        """Gives consumers a moment to take what was sent, and closes all sockets."""
        for outlet in self._by_key.values():
            outlet.close()
        if self._doorkeeper is not None:
            self._doorkeeper.close()
        self._context.term()

    def _open(self, streams: Sequence[Stream], live: str, replay: str) -> None:
        opened: dict[Key, Outlet] = {}
        try:
            for stream in streams:
                source = stream.source
                opened[source.worker_id, source.dp_rank] = Outlet(
                    rank_endpoint(live, source.dp_rank or 0),
                    rank_endpoint(replay, source.dp_rank or 0),
                    topic=source.topic if self._topic is None else self._topic,
                    stream=stream,
                    hwm=self._hwm,
                    context=self._context,
                    keys=self._keys,
                )
        except BaseException:
            for outlet in opened.values():
                outlet.close()
            raise
        self._by_key |= opened


def _fits(remembered: str, wanted: str) -> bool:
    """Whether an address may be used where another is asked for: it is the same but for a port that is left open."""
    if not remembered:
        return False
    old, new = Endpoint.parse(remembered), Endpoint.parse(wanted)
    return new.transport == "tcp" and not new.port and old._replace(port=0) == new


def _of_worker(endpoint: str, number: int, ranks_before: int) -> str:
    parsed = Endpoint.parse(endpoint)
    if parsed.transport != "tcp":
        return f"{endpoint}_w{number}" if number else endpoint
    return rank_endpoint(endpoint, ranks_before)
