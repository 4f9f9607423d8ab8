"""A sink that writes down what it is given."""

import threading
from collections.abc import Callable


class RecordingSink:
    """Takes batches for any worker.

    Attributes:
        applied: `(worker, sequence, payload)` since the worker's last clear, in order.
        clears: `(worker, rank)` of every clear.
        ranks: the rank argument of every batch.
        fails: called with every payload first; may raise.
    """

    def __init__(self, fails: Callable[[bytes], None] = lambda _: None) -> None:
        self.applied: list[tuple[str, int | None, bytes]] = []
        self.clears: list[tuple[str, int | None]] = []
        self.ranks: list[int | None] = []
        self.threads: set[str] = set()
        self.fails = fails

    def apply(self, worker: str, data: bytes, *, seq: int | None, dp_rank: int | None) -> None:
        self.threads.add(threading.current_thread().name)
        self.fails(data)
        self.ranks.append(dp_rank)
        self.applied.append((worker, seq, data))

    def clear_worker(self, worker: str, dp_rank: int | None = None) -> None:
        self.clears.append((worker, dp_rank))
        self.applied = [batch for batch in self.applied if batch[0] != worker]

    def sequences(self, worker: str = "w") -> list[int | None]:
        return [sequence for name, sequence, _ in self.applied if name == worker]

    def payloads(self, worker: str = "w") -> list[bytes]:
        return [payload for name, _, payload in self.applied if name == worker]
