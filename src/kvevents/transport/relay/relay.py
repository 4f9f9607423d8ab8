"""Follows sources and publishes them anew."""

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Self

from kvevents.errors import ConfigError, TransportError, WireError
from kvevents.transport.endpoints import Endpoint, rank_endpoint
from kvevents.transport.poll_loop import PollLoop
from kvevents.transport.relay.backlog import Sent, compacted_batches
from kvevents.transport.relay.journal import Journal
from kvevents.transport.relay.outlets import Endpoints, Key, Outlets
from kvevents.transport.relay.settings import RelaySettings
from kvevents.transport.relay.stats import RelayStats
from kvevents.transport.relay.stream import Added, Stream
from kvevents.transport.security import ConsumerKeys, PublisherKeys
from kvevents.transport.settings import DeliverySettings
from kvevents.transport.source import Source
from kvevents.transport.state import SourceState
from kvevents.transport.subscriber import OnState, Subscriber

_log = logging.getLogger(__name__)

MOST_SOURCES = 4_096


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
        log: a folder for what is needed to go on after this process was ended, by whatever; None: a new relay begins
            anew. With it, a port that is left open stays the same.
        settings: windows and limits.
        delivery: how sources are followed.
        on_state: called as a `Subscriber` calls it.
        keys: who may read what is published here; None: everybody. Each source has its own.

    Raises:
        ConfigError: sources or endpoints that cannot be, or a log that another relay uses.
        TransportError: a socket that cannot be opened, or a log that cannot be written.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        listen: str,
        *,
        replay_listen: str,
        topic: str | None = None,
        log: Path | None = None,
        settings: RelaySettings | None = None,
        delivery: DeliverySettings | None = None,
        on_state: OnState | None = None,
        keys: PublisherKeys | None = None,
    ) -> None:
        self._settings = settings or RelaySettings()
        self._on_state = on_state
        self._topic = topic
        self._workers = _by_worker(sources)
        self._journal = None if log is None else Journal(log)
        self._loop = PollLoop()
        self._remembered: dict[str, Endpoints] = {}
        self._outlets = Outlets(
            (listen, replay_listen), remembered=self._remembered, topic=topic, hwm=self._settings.hwm, keys=keys
        )
        self._ids: dict[Key, int] = {}
        self._streams: dict[Key, Stream] = {}
        self._worker = ThreadPoolExecutor(1, "kvevents-relay-log")
        self._compacting: set[Key] = set()
        self._syncing: Future[None] | None = None
        self._has_logged = False
        self._closing = False
        self._failure: Exception | None = None
        try:
            for worker in self._workers.values():
                for source in worker:
                    self._restore(source)
            for worker_id in self._workers:
                self._open(worker_id)
        except BaseException:
            self._end()
            raise
        self._thread = threading.Thread(target=self._run, name="kvevents-relay", daemon=True)
        self._thread.start()
        try:
            self._subscriber = Subscriber([], _Sink(self._streams), on_state=self._note_state, settings=delivery)
            for stream in self._streams.values():
                # A replay first: a snapshot may be an image without tokens, of which nothing can be published.
                source = replace(stream.source, snapshot=None) if stream.source.snapshot else stream.source
                self._subscriber.add_source(source, position=stream.position)
        except BaseException:
            if hasattr(self, "_subscriber"):
                self._subscriber.close()
            self._stop()
            raise

    @property
    def failure(self) -> Exception | None:
        """Why nothing is published any more; None as long as it is."""
        return self._failure

    @property
    def worker_ids(self) -> list[str]:
        """The workers, in the order of their sources."""
        return list(self._workers)

    def endpoints(self, worker_id: str) -> tuple[str, str]:
        """Where rank 0 of a worker is published and repeated.

        Raises:
            ConfigError: there is no such worker.
        """
        if worker_id not in self._outlets.endpoints:
            raise ConfigError(f"no worker {worker_id!r}; known are {self.worker_ids}")
        return self._outlets.endpoints[worker_id]

    def source_endpoint(self, worker_id: str, dp_rank: int | None = None) -> str:
        """The live address of a source in use, with the real port of one that is bound here.

        Raises:
            ConfigError: there is no such source.
        """
        return self._subscriber.endpoint(worker_id, dp_rank)

    def sources(self, worker_id: str, *, keys: ConsumerKeys | None = None) -> list[Source]:
        """The streams of a worker, for a consumer on this machine; with its keys, if the relay has some.

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
                snapshot=True,
                keys=keys,
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
        description["snapshot"] = True
        if ranks[0].groups:
            description["groups"] = ranks[0].groups
        return description

    def stats(self) -> RelayStats:
        """What was done, by stream."""
        streams = [stream.state(self._outlets[key].replay_stats()) for key, stream in self._streams.items()]
        return RelayStats(streams, self._outlets.refused)

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

    def _restore(self, source: Source) -> None:
        """Makes the stream of a source, from the log if there is one."""
        key, restored = (source.worker_id, source.dp_rank), None
        try:
            if self._journal is not None:
                self._ids[key], restored = self._journal.restore(*key)
                if restored.endpoint:
                    self._remembered[source.worker_id] = restored.endpoint, restored.replay_endpoint
            self._streams[key] = Stream(source, self._settings, self._wake, restored=restored)
        except (sqlite3.Error, WireError) as error:
            raise TransportError(f"the log cannot be read: {error}; move it away to begin anew") from error

    def _open(self, worker_id: str) -> None:
        """Binds the sockets of a worker, and has the log remember where they are."""
        keys = [key for key in self._streams if key[0] == worker_id]
        endpoints = self._outlets.open(worker_id, [self._streams[key] for key in keys])
        if self._journal is not None:
            self._journal.note_endpoints(self._ids[keys[0]], *endpoints)

    # The thread's part.

    def _run(self) -> None:
        try:
            while not self._closing:
                self._loop.turn(self._patience())
                self._flush(time.monotonic())
            self._flush(time.monotonic(), force=True)
        except Exception as error:
            _log.exception("the relay has ended")
            self._failure = error
            for stream in self._streams.values():
                stream.close()  # nobody waits for room that will never be
        finally:
            self._end()

    def _patience(self) -> float | None:
        deadlines = [deadline for stream in self._streams.values() if (deadline := stream.deadline()) is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _flush(self, now: float, *, force: bool = False) -> None:
        ended = {key: batches for key, stream in self._streams.items() if (batches := stream.flush(now, force=force))}
        if not ended:
            return
        self._persist(ended)
        at = time.time()
        for key, batches in ended.items():
            stream = self._streams[key]
            stream.sent(batches, at)
            for batch in batches:
                self._outlets[key].send(batch)
            if key not in self._compacting and stream.wants_compaction():
                self._compacting.add(key)
                self._worker.submit(self._compact, key)

    def _persist(self, ended: dict[Key, list[Sent]]) -> None:
        """Writes to the log what is about to be sent, all streams at once."""
        journal = self._journal
        if journal is None:
            return
        try:
            for key, batches in ended.items():
                journal.append(self._ids[key], batches, self._streams[key].position)
            journal.commit()
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                journal.roll_back()
            for key, batches in ended.items():
                self._streams[key].stats.log_errors += len(batches)
            self._complain("what is sent is not in the log", error)
        if self._syncing is None or self._syncing.done():
            self._syncing = self._worker.submit(journal.sync)

    def _compact(self, key: Key) -> None:
        """In the background: compacts the log of a stream, in memory and on disk."""
        stream = self._streams[key]
        try:
            with stream.frozen() as (logs, compacted_to, _):
                batches = compacted_batches(logs, stream.dialect)
                if self._journal is not None:
                    self._journal.compact(self._ids[key], compacted_to, batches)
            stream.check_size()
        except sqlite3.Error as error:
            stream.stats.log_errors += 1
            self._complain("the log cannot be compacted", error)
        finally:
            self._compacting.discard(key)

    def _complain(self, what: str, error: Exception) -> None:
        if not self._has_logged:
            self._has_logged = True
            _log.error("%s: %s; later failures are only counted", what, error)

    def _stop(self) -> None:
        self._closing = True
        self._wake()
        self._thread.join()

    def _end(self) -> None:
        self._loop.close()
        self._outlets.close()
        self._worker.shutdown()
        if self._journal is not None:
            self._journal.close()


class _Sink:
    """Hands what a subscriber brings to the stream of its source."""

    def __init__(self, streams: dict[Key, Stream]) -> None:
        self._streams = streams

    def apply(self, worker: str, data: bytes, *, seq: int | None, dp_rank: int | None) -> Added:
        return self._streams[worker, dp_rank].add(data, seq)

    def clear_worker(self, worker: str, dp_rank: int | None = None) -> None:
        self._streams[worker, dp_rank].clear()


def _by_worker(sources: Iterable[Source]) -> dict[str, list[Source]]:
    workers: dict[str, list[Source]] = {}
    count = 0
    for source in sources:
        ranks = workers.setdefault(source.worker_id, [])
        if source.dp_rank in {other.dp_rank for other in ranks}:
            raise ConfigError(f"worker {source.worker_id!r}: rank {source.dp_rank} is there twice")
        ranks.append(source)
        count += 1
    if not 1 <= count <= MOST_SOURCES:
        raise ConfigError(f"relay: expected 1 to {MOST_SOURCES} sources, got {count}")
    return workers


def _nothing() -> None:
    """Wakes the loop."""
