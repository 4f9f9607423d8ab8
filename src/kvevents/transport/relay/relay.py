"""Follows sources and publishes them anew."""

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Self

from kvevents.errors import ConfigError, TransportError
from kvevents.transport.endpoints import Endpoint, rank_endpoint
from kvevents.transport.poll_loop import PollLoop
from kvevents.transport.ports import settle_ports
from kvevents.transport.relay.outlet import Outlet
from kvevents.transport.relay.settings import RelaySettings
from kvevents.transport.relay.stats import RelayStats
from kvevents.transport.relay.stream import Added, Stream
from kvevents.transport.settings import DeliverySettings
from kvevents.transport.sockets import new_context
from kvevents.transport.source import Source
from kvevents.transport.state import SourceState
from kvevents.transport.subscriber import OnState, Subscriber

_log = logging.getLogger(__name__)

MOST_SOURCES = 4_096
_ATTEMPTS = 10


class Relay:
    """Publishes what many sources say, each coalesced within a window, on sockets of its own.

    A consumer reads each stream as if it were the engine's: the same frames, a PUB and a replay socket, contiguous
    numbers. Thread-safe.

    Args:
        sources: whom to follow; those of one worker by rank.
        listen: where to publish the first worker's rank 0; other ranks and workers follow (tcp: on the next ports, or
            on free ones for port 0; ipc: with suffixes `_w1`, `_dp1`).
        replay_listen: the same for replays.
        topic: what batches are published under; None: that of the source.
        settings: windows and limits.
        delivery: how sources are followed.
        on_state: called as a `Subscriber` calls it.

    Raises:
        ConfigError: sources or endpoints that cannot be.
        TransportError: a socket that cannot be opened.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        listen: str,
        *,
        replay_listen: str,
        topic: str | None = None,
        settings: RelaySettings | None = None,
        delivery: DeliverySettings | None = None,
        on_state: OnState | None = None,
    ) -> None:
        self._settings = settings or RelaySettings()
        self._on_state = on_state
        self._topic = topic
        self._loop = PollLoop()
        self._context = new_context()
        self._workers = _by_worker(sources)
        self._streams: dict[tuple[str, int | None], Stream] = {}
        self._outlets: dict[tuple[str, int | None], Outlet] = {}
        self._endpoints: dict[str, tuple[str, str]] = {}
        self._closing = False
        for worker in self._workers.values():
            for source in worker:
                self._streams[source.worker_id, source.dp_rank] = Stream(source, self._settings, self._wake)
        try:
            self._open(listen, replay_listen)
        except BaseException:
            self._close_outlets(linger=0)
            self._context.term()
            raise
        self._thread = threading.Thread(target=self._run, name="kvevents-relay", daemon=True)
        self._thread.start()
        try:
            every = [source for worker in self._workers.values() for source in worker]
            self._subscriber = Subscriber(every, _Sink(self._streams), on_state=self._note_state, settings=delivery)
        except BaseException:
            self._stop()
            raise

    def endpoints(self, worker_id: str) -> tuple[str, str]:
        """Where rank 0 of a worker is published and repeated.

        Raises:
            ConfigError: there is no such worker.
        """
        if worker_id not in self._endpoints:
            raise ConfigError(f"no worker {worker_id!r}; known are {sorted(self._endpoints)}")
        return self._endpoints[worker_id]

    def sources(self, worker_id: str) -> list[Source]:
        """The streams of a worker, for a consumer on this machine.

        Raises:
            ConfigError: there is no such worker.
        """
        live, replay = self.endpoints(worker_id)
        return [
            Source(
                worker_id,
                rank_endpoint(live, source.dp_rank or 0),
                replay_endpoint=rank_endpoint(replay, source.dp_rank or 0),
                dp_rank=source.dp_rank,
                topic=self._topic_of(source),
                block_size=source.block_size,
                residency=source.residency,
                groups=source.groups,
            )
            for source in self._workers[worker_id]
        ]

    def describe(self, worker_id: str) -> dict[str, object]:
        """The `kv_events` of a worker's server info, with the relay's sockets.

        Raises:
            ConfigError: there is no such worker.
        """
        live, replay = map(Endpoint.parse, self.endpoints(worker_id))
        ranks = self._workers[worker_id]
        description: dict[str, object] = {"publisher": "zmq"}
        if live.transport == "tcp":
            description |= {"endpoint_host": live.host, "endpoint_port_base": live.port}
        else:
            description["endpoint"] = str(live)
        description |= {"topic": self._topic_of(ranks[0]), "block_size": ranks[0].block_size}
        description["dp_size"] = 1 + max(source.dp_rank or 0 for source in ranks)
        if replay.transport == "tcp":
            description["replay_endpoint_port_base"] = replay.port
        else:
            description["replay_endpoint"] = str(replay)
        if ranks[0].groups:
            description["groups"] = ranks[0].groups
        return description

    def stats(self) -> RelayStats:
        """What was done, by stream."""
        return RelayStats([stream.state() for stream in self._streams.values()])

    def wait_live(self, timeout: float | None = None) -> bool:
        """Waits until every source is live; False if that was not so within `timeout` seconds."""
        return self._subscriber.wait_live(timeout)

    def close(self) -> None:
        """Stops to follow, sends what waits, and closes the sockets; idempotent."""
        for stream in self._streams.values():
            stream.close()
        self._subscriber.close()
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _topic_of(self, source: Source) -> str:
        return source.topic if self._topic is None else self._topic

    def _wake(self) -> None:
        self._loop.call_soon(_nothing)

    def _note_state(self, worker_id: str, dp_rank: int | None, state: SourceState) -> None:
        self._streams[worker_id, dp_rank].note_state(state)
        if self._on_state is not None:
            self._on_state(worker_id, dp_rank, state)

    def _open(self, listen: str, replay_listen: str) -> None:
        """Binds the sockets of all workers."""
        taken = 0
        for number, (worker_id, sources) in enumerate(self._workers.items()):
            ranks = 1 + max(source.dp_rank or 0 for source in sources)
            wanted = [_of_worker(endpoint, number, taken) for endpoint in (listen, replay_listen)]
            is_open = any(parsed.transport == "tcp" and not parsed.port for parsed in map(Endpoint.parse, wanted))
            for attempt in range(_ATTEMPTS):
                live, replay = settle_ports(wanted, ranks)
                try:
                    self._open_worker(sources, live, replay)
                    break
                except TransportError:
                    if not is_open or attempt == _ATTEMPTS - 1:
                        raise
            self._endpoints[worker_id] = (live, replay)
            taken += ranks

    def _open_worker(self, sources: Sequence[Source], live: str, replay: str) -> None:
        opened: dict[tuple[str, int | None], Outlet] = {}
        try:
            for source in sources:
                stream = self._streams[source.worker_id, source.dp_rank]
                opened[source.worker_id, source.dp_rank] = Outlet(
                    rank_endpoint(live, source.dp_rank or 0),
                    rank_endpoint(replay, source.dp_rank or 0),
                    topic=self._topic_of(source),
                    repeat=stream.replay,
                    on_malformed=stream.note_malformed,
                    hwm=self._settings.hwm,
                    loop=self._loop,
                    context=self._context,
                )
        except BaseException:
            for outlet in opened.values():
                outlet.close(linger=0)
            raise
        self._outlets |= opened

    # The thread's part.

    def _run(self) -> None:
        try:
            for outlet in self._outlets.values():
                outlet.start()
            while not self._closing:
                self._loop.turn(self._patience())
                self._flush(time.monotonic())
            self._flush(time.monotonic(), force=True)
        except Exception:
            _log.exception("the relay has ended")
            raise
        finally:
            self._loop.close()
            self._close_outlets()
            self._context.term()

    def _patience(self) -> float | None:
        deadlines = [deadline for stream in self._streams.values() if (deadline := stream.deadline()) is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _flush(self, now: float, *, force: bool = False) -> None:
        for key, stream in self._streams.items():
            if batches := stream.flush(now, force=force):
                stream.sent(batches, time.time())
                for batch in batches:
                    self._outlets[key].send(batch)

    def _stop(self) -> None:
        self._closing = True
        self._wake()
        self._thread.join()

    def _close_outlets(self, linger: int | None = None) -> None:
        for outlet in self._outlets.values():
            outlet.close(linger)


class _Sink:
    """Hands what a subscriber brings to the stream of its source."""

    def __init__(self, streams: dict[tuple[str, int | None], Stream]) -> None:
        self._streams = streams

    def apply(self, worker: str, data: bytes, *, seq: int | None, dp_rank: int | None) -> Added:
        return self._streams[worker, dp_rank].add(data, seq)

    def clear_worker(self, worker: str, dp_rank: int | None = None) -> None:
        self._streams[worker, dp_rank].clear()


def _by_worker(sources: Iterable[Source]) -> dict[str, list[Source]]:
    workers: dict[str, list[Source]] = {}
    count = 0
    for source in sources:
        workers.setdefault(source.worker_id, []).append(source)
        count += 1
    if not 1 <= count <= MOST_SOURCES:
        raise ConfigError(f"relay: expected 1 to {MOST_SOURCES} sources, got {count}")
    return workers


def _of_worker(endpoint: str, number: int, ranks_before: int) -> str:
    parsed = Endpoint.parse(endpoint)
    if parsed.transport != "tcp":
        return f"{endpoint}_w{number}" if number else endpoint
    return rank_endpoint(endpoint, ranks_before)


def _nothing() -> None:
    """Wakes the loop."""
