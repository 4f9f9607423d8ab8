"""A stream that is checked while it comes."""

import contextlib
import queue
import threading
import time
from collections.abc import Iterable, Mapping

from kvevents._core.capture import measure
from kvevents.errors import WireError
from kvevents.lint.linter import StreamLinter
from kvevents.transport import Source, SourceState, Subscriber
from kvevents.transport.capture import (
    CapturedBatch,
    CapturedRefusal,
    CapturedReset,
    CapturedState,
    CaptureRecord,
    CaptureSource,
)

_QUEUE_RECORDS = 10_000
"""Records that wait to be checked; when there are as many, the receiver waits, and behind it the transport."""

_LOOK_S = 0.1


def lint_live(
    sources: Iterable[Source], linter: StreamLinter, *, seconds: float, ended: threading.Event
) -> Mapping[tuple[str, int | None], SourceState]:
    """Follow sources for a time and check what they publish. What came before is fetched where it can be repeated.

    Args:
        sources: what to follow.
        linter: takes what comes; the caller asks it for its report.
        seconds: how long.
        ended: ends it before.

    Returns:
        The state of each source at the end.

    Raises:
        ConfigError: two sources for one worker and rank.
        TransportError: a source's socket cannot be opened.
    """
    feed = _Feed(sources)
    end = time.monotonic() + seconds
    with Subscriber(feed.sources.values(), feed, on_state=feed.on_state, on_arrival=feed.on_arrival) as subscriber:
        try:
            while not ended.is_set() and (left := end - time.monotonic()) > 0:
                record = feed.next(min(left, _LOOK_S))
                if record is not None:
                    linter.feed(record)
            states = subscriber.states()
        finally:
            feed.close()
    while (record := feed.next(0)) is not None:
        linter.feed(record)
    return states


class _Feed:
    """The sink of a subscriber, which makes records of what it is given; its thread calls all but `next`."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.sources = {(source.worker_id, source.dp_rank): source for source in sources}
        self._named = {key: CaptureSource.of(source) for key, source in self.sources.items()}
        self._records: queue.Queue[CaptureRecord] = queue.Queue(_QUEUE_RECORDS)
        self._is_open = True
        self._topic: bytes | None = None
        self._replayed = False

    def next(self, seconds: float) -> CaptureRecord | None:
        try:
            return self._records.get(timeout=seconds) if seconds else self._records.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Nobody takes records any more: a receiver that waits for room goes on without."""
        self._is_open = False

    def on_arrival(self, source: Source, topic: bytes | None, replayed: bool) -> None:
        del source
        self._topic, self._replayed = topic, replayed

    def apply(self, worker: str, data: bytes, *, seq: int | None, dp_rank: int | None) -> None:
        source = self._named[worker, dp_rank]
        try:
            measure(data)
        except WireError as error:
            self._put(CapturedRefusal(time.time(), source, seq, len(data), error.reason, error.offset))
            raise
        self._put(CapturedBatch(time.time(), source, seq, data, self._topic, self._replayed))

    def clear_worker(self, worker: str, dp_rank: int | None = None) -> None:
        self._put(CapturedReset(time.time(), self._named[worker, dp_rank]))

    def on_state(self, worker: str, dp_rank: int | None, state: SourceState) -> None:
        source = self._named[worker, dp_rank]
        self._put(CapturedState(time.time(), source, state.state, state.code, state.reason, {}))

    def _put(self, record: CaptureRecord) -> None:
        while self._is_open:
            with contextlib.suppress(queue.Full):
                self._records.put(record, timeout=_LOOK_S)
                return
