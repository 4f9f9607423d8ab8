"""What an engine holds, followed beside it, so that late subscribers can have a snapshot of it."""

import queue
import threading

from kvevents.index import PrefixIndex
from kvevents.transport import Snapshot
from kvevents.transport.sink import judge

_WORKER = "engine"


class Mirror:
    """An index that is fed with every batch of one rank, by a thread of its own.

    Memory: that of an index of what the engine holds, plus the batches that wait.

    Args:
        rank: whose batches.
        block_size: of the index; any will do, since snapshots hold the engine's own blocks.
    """

    def __init__(self, rank: int, block_size: int = 16) -> None:
        self._rank = rank
        self._index = PrefixIndex(block_size, max_sources=1)
        self._queue: queue.SimpleQueue[tuple[int, bytes] | threading.Event | None] = queue.SimpleQueue()
        self._last: int | None = None
        self._lock = threading.Lock()
        self._failed = 0
        self._thread = threading.Thread(target=self._run, name="kvevents-mirror", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> int:
        """Batches that could not be followed; from then on there are no snapshots before the next clear."""
        return self._failed

    def add(self, sequence: int, payload: bytes) -> None:
        """Follows a batch; never waits."""
        self._queue.put((sequence, payload))

    def snapshot(self) -> Snapshot | None:
        """What a consumer should hold after the last batch so far; None if it is not known."""
        reached = threading.Event()
        self._queue.put(reached)
        while self._thread.is_alive() and not reached.wait(1.0):
            pass
        if not reached.is_set():
            return None
        with self._lock:
            if self._failed:
                return None
            return Snapshot(self._last, self._index.snapshot_worker(_WORKER, self._rank))

    def close(self) -> None:
        """Ends the thread. Idempotent."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            sequence, payload = item
            with self._lock:
                try:
                    report = self._index.apply(_WORKER, payload, seq=sequence, dp_rank=self._rank)
                except Exception:  # an engine must not lose its thread, nor a consumer get a wrong picture
                    self._failed += 1
                else:
                    verdict = judge(report, sequence, payload)
                    self._failed = 0 if verdict.cleared else self._failed
                    self._failed += verdict.fault is not None
                self._last = sequence
