"""A fleet's log on NATS JetStream as the source of all workers' events."""

import asyncio
import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kvevents.errors import TransportError
from kvevents.index import PrefixIndex
from kvevents.server.configuration.events import JetStreamEvents
from kvevents.server.configuration.worker import WorkerSettings
from kvevents.transport import Source, SourceState
from kvevents.transport.subscriber import OnState

if TYPE_CHECKING:
    from kvevents.transport.jetstream import JetStreamSubscriber, WorkerRecord

_NATS_PORT = 4222


class LogReceiver:
    """One reading of the log; it brings what every worker of the fleet publishes, asked for or not."""

    def __init__(self, subscriber: "JetStreamSubscriber") -> None:
        self._subscriber = subscriber

    def add_source(self, source: Source) -> None:
        """Nothing to do: the log is read whole."""

    def remove_source(self, worker_id: str, dp_rank: int | None = None) -> None:
        """Nothing to do: the log is read whole."""

    def state(self, worker_id: str, dp_rank: int | None = None) -> SourceState:
        """How far the picture of a worker's rank can be trusted.

        Raises:
            ConfigError: the log does not know it.
        """
        return self._subscriber.state(worker_id, dp_rank)

    def close(self) -> None:
        """Stop to read."""
        self._subscriber.close()


class FleetLog:
    """Reads the log, and knows the workers that have put themselves into its registry.

    Args:
        section: how to reach it.
        patience_s: how long to wait for everything that is in it when it is opened.

    Raises:
        ConfigError: the extra is missing, or a setting cannot work.
    """

    def __init__(self, section: JetStreamEvents, *, patience_s: float) -> None:
        self._section = section
        self._settings = section.settings(os.environ)
        self._settings.access.options()  # a file that cannot be read is said now, not at each attempt
        self._patience_s = patience_s
        self._subscriber: JetStreamSubscriber | None = None

    async def open(self, index: PrefixIndex, *, on_state: OnState) -> LogReceiver:
        """Begin to read into an index. Where the broker is away, that goes on to be tried."""
        from kvevents.transport.jetstream import JetStreamSubscriber  # noqa: PLC0415 (an extra)

        self._subscriber = JetStreamSubscriber(
            self._settings,
            index,
            snapshots=index,
            snapshot_every_s=self._section.snapshot_every_s,
            grace_s=self._section.grace_s,
            on_state=on_state,
        )
        with contextlib.suppress(TransportError):  # its state says so, and readiness waits for it
            await asyncio.to_thread(self._subscriber.wait_caught_up, self._patience_s)
        return LogReceiver(self._subscriber)

    def block_sizes(self) -> Iterable[int | None]:
        """Tokens in a block of each worker in the registry."""
        return [record.block_size for record in self._records()]

    def worker_id(self, worker: WorkerSettings) -> str:
        """What the log calls a worker: the id given, else that of the record with its URL, else `host:port`."""
        if worker.id is None:
            for record in self._records():
                if record.url is not None and record.url.rstrip("/") == worker.base_url:
                    return record.worker
        return worker.worker_id

    def sources(self, worker_id: str) -> Sequence[Source]:
        """What the registry says of a worker's ranks, as sources.

        Raises:
            TransportError: it has no such worker, now.
        """
        records = sorted((one for one in self._records() if one.worker == worker_id), key=lambda record: record.rank)
        if not records:
            names = sorted({record.worker for record in self._records()})
            known = ", ".join(names[:5]) or "none"
            broker = None if self._subscriber is None else self._subscriber.broker
            reason = "" if broker is None or broker.connected else f"; the broker is away: {broker.reason}"
            raise TransportError(
                f"the log of fleet {self._settings.fleet!r} has no worker {worker_id!r} (known: {known}): set its id "
                f"to the KVEVENTS_WORKER_ID of the engine{reason}"
            )
        endpoint = self._endpoint()
        return [
            Source(
                worker_id,
                endpoint,
                dp_rank=record.rank,
                block_size=record.block_size,
                residency=record.residency,
                groups=record.groups,
            )
            for record in records
        ]

    def _records(self) -> "Sequence[WorkerRecord]":
        return () if self._subscriber is None else self._subscriber.workers()

    def _endpoint(self) -> str:
        """The broker's address, to be shown."""
        server = urlsplit(self._settings.servers[0])
        host = f"[{server.hostname}]" if server.hostname and ":" in server.hostname else server.hostname
        return f"tcp://{host}:{server.port or _NATS_PORT}"
