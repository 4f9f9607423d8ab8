"""Where an engine's batches go: merged, then to ZMQ subscribers, to a fleet's log, or both."""

import contextlib
import threading
from typing import TYPE_CHECKING

import msgspec

from kvevents.coalescing import Coalescer
from kvevents.errors import KVEventsError, WireError
from kvevents.integrations.mirror import Mirror
from kvevents.integrations.report import note
from kvevents.integrations.settings import PluginSettings
from kvevents.transport import PublisherKeys, PublisherStats, ZmqPublisher
from kvevents.wire import Dialect

if TYPE_CHECKING:  # the extra `nats` is only needed where it is asked for
    from kvevents.transport.jetstream import JetStreamPublisher, JetStreamPublisherStats


class OutletStats(msgspec.Struct, frozen=True):
    """What an outlet did so far.

    Attributes:
        batches: batches that the engine gave.
        bytes: what they take as the engine would have sent them.
        sent_bytes: what they take merged.
        failed: batches that could not be published; each is said once on stderr.
        unmerged: batches that could not be merged and went on as they were.
        unfollowed: batches since the last clear that the index behind the snapshots could not follow; while there are
            any, no snapshots are given.
        zmq: of the ZMQ publisher; None without one.
        jetstream: of the JetStream publisher; None without one.
    """

    batches: int
    bytes: int
    sent_bytes: int
    failed: int
    unmerged: int
    unfollowed: int
    zmq: PublisherStats | None
    jetstream: "JetStreamPublisherStats | None"


class Outlet:
    """One rank's way out. Whatever goes wrong after it is made is said and counted, never raised into the engine.

    Args:
        engine: `sglang` or `vllm`, for reports.
        settings: what to do.
        rank: data-parallel rank; endpoints are moved by it.
        endpoint: the live socket for rank 0, as the engine's own settings say.
        replay_endpoint: the replay socket for rank 0; None: no replays, and no snapshots.
        bind: whether the live socket binds; None decides as SGLang does.
        topic: what batches are published under.
        buffer_steps: how many batches can be repeated.
        hwm: messages queued for one slow consumer.
        max_queue_size: batches that wait for a publisher's thread.
        dialect: how the engine writes its events.

    Attributes:
        zmq: the ZMQ publisher; None if that is turned off.

    Raises:
        ConfigError: a setting that cannot work.
        TransportError: an address that cannot be bound.
        ImportError: JetStream is asked for and the extra `nats` is missing.
    """

    def __init__(
        self,
        engine: str,
        settings: PluginSettings,
        *,
        rank: int,
        endpoint: str,
        replay_endpoint: str | None = None,
        bind: bool | None = None,
        topic: str = "",
        buffer_steps: int = 10_000,
        hwm: int = 100_000,
        max_queue_size: int = 100_000,
        dialect: Dialect = "sglang",
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._lock = threading.Lock()
        self._coalescer = (
            None if settings.coalesce == "off" else Coalescer(settings.coalesce, dialect=dialect, from_start=True)
        )
        self._batches = self._bytes = self._sent_bytes = self._failed = self._unmerged = 0
        self.zmq: ZmqPublisher | None = None
        self._mirror: Mirror | None = None
        self._jetstream: JetStreamPublisher | None = None
        try:
            if settings.jetstream:
                self._jetstream = _open_jetstream(settings, rank, endpoint, max_queue_size, dialect)
            if settings.zmq:
                if settings.snapshot:
                    self._mirror = Mirror(rank)
                self.zmq = ZmqPublisher(
                    endpoint,
                    replay_endpoint=replay_endpoint,
                    snapshot=None if self._mirror is None else self._mirror.snapshot,
                    topic=topic,
                    buffer_steps=buffer_steps,
                    hwm=hwm,
                    max_queue_size=max_queue_size,
                    dp_rank=rank,
                    bind=bind,
                    dialect=dialect,
                    keys=None if settings.keys_file is None else PublisherKeys(settings.keys_file),
                )
        except BaseException:
            self.close()
            raise
        note(engine, "publishing", self._describe(rank), folder=settings.state_dir, is_loud=True)

    def publish(self, payload: bytes) -> None:
        """Merges an encoded batch and queues it everywhere; never waits for a consumer or a broker."""
        with self._lock:
            self._batches += 1
            self._bytes += len(payload)
            try:
                merged = self._merge(payload)
                self._sent_bytes += len(merged)
                if self.zmq is not None:
                    sequence = self.zmq.publish(merged)
                    if self._mirror is not None:
                        self._mirror.add(sequence, merged)
                if self._jetstream is not None:
                    self._jetstream.publish(merged)
            except Exception as error:  # the engine goes on whatever happens to its events
                self._failed += 1
                self._complain(f"a batch was not published: {type(error).__name__}: {error}", first=self._failed == 1)

    def stats(self) -> OutletStats:
        """Counters."""
        with self._lock:
            return OutletStats(
                batches=self._batches,
                bytes=self._bytes,
                sent_bytes=self._sent_bytes,
                failed=self._failed,
                unmerged=self._unmerged,
                unfollowed=0 if self._mirror is None else self._mirror.failed,
                zmq=None if self.zmq is None else self.zmq.stats(),
                jetstream=None if self._jetstream is None else self._jetstream.stats(),
            )

    def close(self) -> None:
        """Sends what is queued and closes everything; idempotent."""
        for part in (self._jetstream, self.zmq, self._mirror):
            if part is not None:
                with contextlib.suppress(KVEventsError):
                    part.close()

    def _merge(self, payload: bytes) -> bytes:
        if self._coalescer is None:
            return payload
        try:
            self._coalescer.add(payload)
        except (WireError, ValueError) as error:
            self._unmerged += 1
            self._complain(f"a batch was not merged: {error}", first=self._unmerged == 1)
            return payload
        return self._coalescer.take_batch() or payload

    def _complain(self, what: str, *, first: bool) -> None:
        if first:
            detail = f"{what}; later ones are only counted"
            note(self._engine, "impaired", detail, folder=self._settings.state_dir, is_loud=True)

    def _describe(self, rank: int) -> str:
        ways = []
        if self.zmq is not None:
            replay = "no replays" if self.zmq.replay_endpoint is None else f"replays at {self.zmq.replay_endpoint}"
            keys = "" if self._settings.keys_file is None else ", for listed keys"
            snapshots = ", snapshots" if self._mirror is not None else ""
            ways.append(f"ZMQ at {self.zmq.endpoint} ({replay}{snapshots}{keys})")
        if self._jetstream is not None:
            ways.append(f"JetStream as worker {self._jetstream.worker_id!r}")
        return f"rank {rank}, coalescing {self._settings.coalesce}, {' and '.join(ways)}"


def _open_jetstream(
    settings: PluginSettings, rank: int, endpoint: str, max_queue_size: int, dialect: Dialect
) -> "JetStreamPublisher":
    from kvevents.transport.jetstream import JetStreamPublisher, JetStreamSettings  # noqa: PLC0415 - an extra

    return JetStreamPublisher(
        JetStreamSettings.from_environment(),
        settings.worker_name(endpoint),
        dp_rank=rank,
        max_queue_size=max_queue_size,
        dialect=dialect,
        url=settings.worker_url,
    )
