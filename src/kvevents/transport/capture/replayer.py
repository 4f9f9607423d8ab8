"""Plays a capture as the engines that it was recorded from."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Self

import msgspec
import zmq

from kvevents._core.capture import measure
from kvevents.errors import ConfigError, WireError
from kvevents.events import AllBlocksCleared, KVEventBatch
from kvevents.transport.capture.reader import CaptureReader
from kvevents.transport.capture.records import CapturedBatch, CapturedReset, CaptureSource
from kvevents.transport.capture.server_info import ServerInfo
from kvevents.transport.capture.stage import Stage, open_stages
from kvevents.transport.endpoints import Endpoint, rank_endpoint
from kvevents.transport.security import Doorkeeper, PublisherKeys
from kvevents.transport.sockets import new_context
from kvevents.wire import encode_batch

_FOREVER_MS = 1_000
_BATCHES_A_TURN = 64
_Key = tuple[str, int | None]


class PlayedWorker(NamedTuple):
    """A worker of a capture, as it can be reached while it is played.

    Attributes:
        worker_id: its name in the capture.
        url: whose `/server_info` names its sockets.
        endpoint: live socket of its rank 0.
        replay_endpoint: the same of the replay socket.
        ranks: data-parallel ranks.
    """

    worker_id: str
    url: str
    endpoint: str
    replay_endpoint: str
    ranks: int


class ReplayStats(msgspec.Struct):
    """How far it is.

    Attributes:
        batches: batches published.
        events: their events.
        blocks: block hashes in them.
        payload_bytes: their payloads.
        total_batches: batches in the capture.
        rounds: times the capture was played to its end.
        position_s: time of the batch published last, from the first, as recorded.
        subscriptions: subscriptions so far.
    """

    batches: int = 0
    events: int = 0
    blocks: int = 0
    payload_bytes: int = 0
    total_batches: int = 0
    rounds: int = 0
    position_s: float = 0.0
    subscriptions: int = 0


class Replayer:
    """Publishes the batches of a capture under their sequence numbers and topics, and repeats them on request.

    Each worker has its sockets, those of its ranks side by side, and a URL that `discover` understands. One thread
    makes all calls but `stop` and `stats`.

    Args:
        reader: the capture.
        to: live socket of the first worker's rank 0, bound; with several workers each next one takes the ports after
            it. With port 0 or `*` free ones are found.
        replay_to: the same of the replay sockets.
        host: where the URLs listen.
        port: port of the first worker's URL, others take those after it; 0 for free ones.
        speed: 2 plays twice as fast as it was recorded; None as fast as subscribers take it, of which none loses
            anything then.
        buffer_bytes: payloads that each rank can repeat.
        keys: who may read; None: everybody.

    Attributes:
        workers: where each worker can be reached.

    Raises:
        ConfigError: there is nothing to play, or a setting that cannot work.
        TransportError: an address cannot be bound, or the capture cannot be read.
    """

    def __init__(
        self,
        reader: CaptureReader,
        *,
        to: str = "tcp://127.0.0.1:*",
        replay_to: str = "tcp://127.0.0.1:*",
        host: str = "127.0.0.1",
        port: int = 0,
        speed: float | None = 1.0,
        buffer_bytes: int = 256 << 20,
        keys: PublisherKeys | None = None,
    ) -> None:
        if speed is not None and not speed > 0:
            raise ConfigError(f"speed: expected a number above 0, or None, got {speed!r}")
        if keys is not None:
            keys.check(to, replay_to)
        self._keys = keys
        self._reader = reader
        self._speed = speed
        self._stopping = threading.Event()
        self._stats = ReplayStats()
        self._offsets: dict[_Key, int] = {}
        self._firsts: dict[_Key, int] = {}
        self._topics: dict[_Key, bytes] = {}
        self._stages: dict[_Key, Stage] = {}
        self._servers: list[ServerInfo] = []
        self.workers: list[PlayedWorker] = []
        sources = self._survey()
        if not sources:
            raise ConfigError("expected a capture with batches in it, found none")
        self._context = new_context()
        self._doorkeeper = None if keys is None else Doorkeeper(self._context, keys)
        self._poller = zmq.Poller()
        try:
            self._open(sources, (to, replay_to), (host, port), buffer_bytes)
        except BaseException:
            self.close()
            raise

    def run(self, *, wait_for: int = 0, loop: bool = False, tick: Callable[[], object] | None = None) -> None:
        """Plays the capture; returns when all is published, or after `stop`.

        Args:
            wait_for: begin when so many subscriptions have come.
            loop: begin anew at the end, with a clear and sequence numbers that go on.
            tick: called now and then.

        Raises:
            TransportError: the capture cannot be read.
        """
        while self._stats.subscriptions < wait_for and not self._stopping.is_set():
            self._turn(_FOREVER_MS, tick)
        while not self._stopping.is_set():
            self._play(tick)
            if not self._stopping.is_set():
                self._stats.rounds += 1
            if not loop:
                break
            self._begin_again()

    def serve(self, *, tick: Callable[[], object] | None = None) -> None:
        """Repeats what was published, until `stop`."""
        while not self._stopping.is_set():
            self._turn(_FOREVER_MS, tick)

    def stop(self) -> None:
        """Has `run` and `serve` return soon; any thread or signal handler may call it."""
        self._stopping.set()

    def stats(self) -> ReplayStats:
        """How far it is."""
        return msgspec.structs.replace(self._stats)

    def close(self) -> None:
        """Gives subscribers a second to take what was published and closes everything; idempotent."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for stage in self._stages.values():
            stage.close()
        self._stages.clear()
        if self._doorkeeper is not None:
            self._doorkeeper.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Before it begins.

    def _survey(self) -> dict[_Key, CaptureSource]:
        """The sources that have batches, and how many there are."""
        sources: dict[_Key, CaptureSource] = {}
        for batch in self._reader.batches():
            self._stats.total_batches += 1
            key = (batch.source.worker_id, batch.source.dp_rank)
            if key not in sources:
                topic = batch.source.topic if batch.topic is None else batch.topic.decode(errors="replace")
                sources[key] = msgspec.structs.replace(batch.source, topic=topic)
                self._firsts[key] = batch.sequence or 0
                self._topics[key] = topic.encode()
        return sources

    def _open(
        self, sources: dict[_Key, CaptureSource], sockets: tuple[str, str], http: tuple[str, int], buffer_bytes: int
    ) -> None:
        to, replay_to = sockets
        host, port = http
        for worker_id in dict.fromkeys(worker_id for worker_id, _ in sources):
            ranks = {source.dp_rank or 0: key for key, source in sources.items() if key[0] == worker_id}
            count = max(ranks) + 1
            stages, live, replay = open_stages(
                self._context,
                to,
                replay_to,
                count,
                buffer_bytes=buffer_bytes,
                waits=self._speed is None,
                keys=self._keys,
            )
            source = sources[ranks[min(ranks)]]
            for rank, stage in enumerate(stages):
                self._stages[ranks.get(rank, (worker_id, rank))] = stage
                self._poller.register(stage.live, zmq.POLLIN)
                self._poller.register(stage.router, zmq.POLLIN)
            server = ServerInfo(_kv_events(source, live, replay, count), host=host, port=port)
            self._servers.append(server)
            self.workers.append(PlayedWorker(worker_id, server.url, live, replay, count))
            to, replay_to = rank_endpoint(to, count), rank_endpoint(replay_to, count)
            port += bool(port)

    # While it runs.

    def _play(self, tick: Callable[[], object] | None) -> None:
        stats = self._stats
        begin, first, sent = time.monotonic(), None, 0
        for record in self._reader.once():
            if self._stopping.is_set():
                return
            key = (record.source.worker_id, record.source.dp_rank)
            if isinstance(record, CapturedReset):
                if key in self._stages:
                    self._stages[key].forget()
                continue
            if not isinstance(record, CapturedBatch):
                continue
            first = record.time if first is None else first
            self._wait_until(begin, record.time - first, tick)
            self._publish(key, record, tick)
            stats.position_s = record.time - first
            sent += 1
            if sent % _BATCHES_A_TURN == 0:
                self._turn(0, tick)

    def _wait_until(self, begin: float, position_s: float, tick: Callable[[], object] | None) -> None:
        if self._speed is None:
            return
        while (left := begin + position_s / self._speed - time.monotonic()) > 0 and not self._stopping.is_set():
            self._turn(min(_FOREVER_MS, int(left * 1000) + 1), tick)

    def _publish(self, key: _Key, batch: CapturedBatch, tick: Callable[[], object] | None) -> None:
        stage, stats = self._stages[key], self._stats
        number = (0 if stage.last is None else stage.last + 1) if batch.sequence is None else batch.sequence
        topic = self._topics[key] if batch.topic is None else batch.topic
        while not stage.send(number + self._offsets.get(key, 0), topic, batch.payload):
            if self._stopping.is_set():
                return
            self._turn(1, tick)
        stats.batches += 1
        stats.payload_bytes += len(batch.payload)
        try:
            events, blocks, _ = measure(batch.payload)
        except WireError:
            return
        stats.events += events
        stats.blocks += blocks

    def _begin_again(self) -> None:
        """Ends a round: nothing is held any more, and the next round's numbers follow."""
        for key, stage in self._stages.items():
            if stage.last is None:
                continue
            rank = key[1]
            clear = encode_batch(KVEventBatch(time.time(), [AllBlocksCleared()], rank))
            while not stage.send(stage.last + 1, self._topics[key], clear) and not self._stopping.is_set():
                self._turn(1, None)
            self._offsets[key] = stage.last + 1 - self._firsts[key]

    def _turn(self, timeout_ms: int, tick: Callable[[], object] | None) -> None:
        """Serves the sockets once, after waiting for something to do."""
        if self._poller.poll(timeout_ms):
            for stage in self._stages.values():
                stage.serve()
            self._stats.subscriptions = sum(stage.joined for stage in self._stages.values())
        if tick is not None:
            tick()


def _kv_events(source: CaptureSource, live: str, replay: str, ranks: int) -> dict[str, object]:
    """The object of `/server_info`."""
    about: dict[str, object] = {
        "publisher": "zmq",
        "topic": source.topic,
        "block_size": source.block_size,
        "dp_size": ranks,
        "groups": source.groups or None,
    }
    at, repeats_at = Endpoint.parse(live), Endpoint.parse(replay)
    if at.transport == "tcp" and repeats_at.transport == "tcp" and at.host == repeats_at.host:
        return about | {
            "endpoint_host": at.host,
            "endpoint_port_base": at.port,
            "replay_endpoint_port_base": repeats_at.port,
        }
    return about | {"endpoint": live, "replay_endpoint": replay}
