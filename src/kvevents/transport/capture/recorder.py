"""Follows sources and writes down what they publish."""

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Self

from kvevents.errors import TransportError
from kvevents.transport.capture.writer import CaptureWriter, WrittenBatch
from kvevents.transport.settings import DeliverySettings
from kvevents.transport.source import Source
from kvevents.transport.state import SourceState
from kvevents.transport.subscriber import Subscriber

_FLUSH_S = 0.2


class Recorder:
    """Records sources into a capture until it is closed: their batches in order, each once, and their states.

    What a late start or a gap missed comes through the replay sockets, as with any subscriber, and what could not be
    had is in the capture as the source's state and counters.

    Args:
        sources: what to follow.
        writer: where to; closed by whoever made it.
        settings: times and limits.

    Raises:
        ConfigError: two sources for one worker and rank.
        TransportError: a source's socket cannot be opened.
    """

    def __init__(
        self, sources: Iterable[Source], writer: CaptureWriter, *, settings: DeliverySettings | None = None
    ) -> None:
        self._writer = writer
        self._sources = {(source.worker_id, source.dp_rank): source for source in sources}
        self._sink = _Sink(self._sources, writer)
        self._subscriber = Subscriber(
            self._sources.values(),
            self._sink,
            on_state=self._sink.on_state,
            settings=settings,
            on_arrival=self._sink.on_arrival,
        )
        self._stop = threading.Event()
        self._flusher = threading.Thread(target=self._flush, name="kvevents-recorder", daemon=True)
        self._flusher.start()

    def states(self) -> Mapping[tuple[str, int | None], SourceState]:
        """What is known about every source, by worker id and rank."""
        return self._subscriber.states()

    def check(self) -> None:
        """Says whether what comes is still written.

        Raises:
            TransportError: it is not.
        """
        if self._writer.failure is not None:
            raise TransportError(self._writer.failure)

    def close(self) -> None:
        """Stops to follow, and writes each source's last state with all that was counted; idempotent."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._flusher.join()
        states = self._subscriber.states()
        self._subscriber.close()
        for key, state in states.items():
            if self._writer.failure is None:
                self._writer.write_state(self._sources[key], state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _flush(self) -> None:
        while not self._stop.wait(_FLUSH_S):
            try:
                self._writer.flush_due()
            except TransportError:
                return  # `check` says it


class _Sink:
    """Takes what the subscriber applies; all calls are made by its thread."""

    def __init__(self, sources: Mapping[tuple[str, int | None], Source], writer: CaptureWriter) -> None:
        self._sources = sources
        self._writer = writer
        self._topic: bytes | None = None
        self._replayed = False
        self._arrived = 0.0

    def on_arrival(self, source: Source, topic: bytes | None, replayed: bool) -> None:
        del source
        self._topic, self._replayed, self._arrived = topic, replayed, time.time()

    def apply(self, worker: str, data: bytes, *, seq: int | None, dp_rank: int | None) -> WrittenBatch:
        return self._writer.write_batch(
            self._sources[worker, dp_rank],
            data,
            sequence=seq,
            topic=self._topic,
            replayed=self._replayed,
            arrived=self._arrived,
        )

    def clear_worker(self, worker: str, dp_rank: int | None = None) -> None:
        self._writer.write_reset(self._sources[worker, dp_rank])

    def on_state(self, worker: str, dp_rank: int | None, state: SourceState) -> None:
        self._writer.write_state(self._sources[worker, dp_rank], state)
