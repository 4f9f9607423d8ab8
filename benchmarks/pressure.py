"""A long run of requests in a cache that is always full, and what each operation took."""

import gc
import itertools
import random
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from benchmarks.measure import resident_bytes
from kvevents.caches import RadixCache
from kvevents.caches.node import Node
from kvevents.recorder import EventRecorder

PAGE_SIZE = 16
CAPACITY = 40_000 * PAGE_SIZE
SYSTEM_PROMPTS = 64
CONVERSATIONS = 20_000
TURNS = 6
TURN = 4 * PAGE_SIZE
"""Tokens that a turn adds to its conversation."""
RUNNING = 32
"""Requests that are running, their prompts locked."""
TAKE_EVERY = 16
"""Requests between two batches."""
EVICT_EVERY = 5_000
"""Requests between two evictions of half the cache."""
LARGE = 1_000
"""Nodes from which on an eviction is counted apart."""
WARM_UP = 0.5
"""Part of the run after which memory is looked at: for 900,000 operations prompts that share ever more with each other
cut the tree into ever more nodes."""
SAMPLES = 100
SLOW_NS = 1_000_000
"""An operation that takes longer is looked at by itself."""
VOCABULARY_BITS = 17


class Slow(NamedTuple):
    """An operation that took long."""

    call: str
    nanoseconds: int
    collecting: int
    """Of them, in Python's garbage collector."""


class Pressure:
    """Requests whose prompts are Zipf-distributed: matched, locked, inserted, and unlocked when they end.

    Args:
        operations: calls of the cache.
    """

    def __init__(self, operations: int) -> None:
        self.done = 0
        self.times = array("q", bytes(8 * (operations + 64)))
        """Nanoseconds of the processor's time that each call took; `done` of them."""
        self.large: list[tuple[int, int]] = []
        """Nodes and nanoseconds of each eviction of many nodes."""
        self.slow: list[Slow] = []
        """The others that took more than `SLOW_NS`."""
        self.resident: list[int] = []
        """Bytes, after the warm-up."""
        self.nodes: list[int] = []
        """Of the tree, at the same moments."""
        self._collecting = 0
        self._collection_began = 0
        self._operations = operations
        self._recorder = EventRecorder(PAGE_SIZE, coalesce="off")
        self._cache = RadixCache(page_size=PAGE_SIZE, capacity=CAPACITY, recorder=self._recorder)
        self._draw = random.Random(1)
        self._system = [self._tokens(self._draw.randrange(4, 64) * PAGE_SIZE) for _ in range(SYSTEM_PROMPTS)]
        self._own = memoryview(self._tokens(CONVERSATIONS * TURNS * TURN))
        self._turns = bytearray(CONVERSATIONS)
        self._popularity = list(itertools.accumulate(1 / rank for rank in range(1, CONVERSATIONS + 1)))

    def run(self) -> None:
        """All of it."""
        gc.callbacks.append(self._collection)
        try:
            self._run()
        finally:
            gc.callbacks.remove(self._collection)
        self._cache.check_integrity()

    def _run(self) -> None:
        cache, running = self._cache, deque[Node]()
        sample_at = int(WARM_UP * self._operations)
        for request in itertools.count(1):
            prompt = self._prompt()
            node = self._timed(cache.match_prefix, prompt).node
            self._timed(cache.lock, node)
            inserted = self._timed(cache.insert, prompt).node
            self._timed(cache.lock, inserted)
            self._timed(cache.unlock, node)
            running.append(inserted)
            if len(running) > RUNNING:
                self._timed(cache.unlock, running.popleft())
            if request % TAKE_EVERY == 0:
                self._timed(cache.take_batch)
            if request % EVICT_EVERY == 0:
                self._evict()
            if self.done >= sample_at:
                self.resident.append(resident_bytes())
                self.nodes.append(sum(1 for _ in cache._tree))  # noqa: SLF001 - nobody else needs to count them
                sample_at += self._operations // SAMPLES
            if self.done >= self._operations:
                break

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        self._collecting = 0
        start = time.thread_time_ns()
        result = call(*arguments)
        self.times[self.done] = spent = time.thread_time_ns() - start
        self.done += 1
        if spent > SLOW_NS:
            self.slow.append(Slow(call.__name__, spent, self._collecting))
        return result

    def _collection(self, phase: Literal["start", "stop"], _info: dict[str, int]) -> None:
        """Python collects garbage."""
        if phase == "start":
            self._collection_began = time.thread_time_ns()
        else:
            self._collecting += time.thread_time_ns() - self._collection_began

    def _evict(self) -> None:
        before = self._recorder.stats().recorded_events
        self._timed(self._cache.evict, CAPACITY // 2)
        nodes = self._recorder.stats().recorded_events - before
        if nodes > LARGE:
            self.done -= 1
            self.large.append((nodes, self.times[self.done]))
            self.slow = [slow for slow in self.slow if slow.nanoseconds != self.times[self.done]]

    def _prompt(self) -> "array[int]":
        [number] = self._draw.choices(range(CONVERSATIONS), cum_weights=self._popularity)
        turn = self._turns[number] = self._turns[number] % TURNS + 1
        start = number * TURNS * TURN
        prompt = self._system[number % SYSTEM_PROMPTS][:]
        prompt.frombytes(self._own[start : start + turn * TURN].cast("B"))
        return prompt

    def _tokens(self, count: int) -> "array[int]":
        mask = int.from_bytes(((1 << VOCABULARY_BITS) - 1).to_bytes(4, "little") * count, "little")
        return array("I", (self._draw.getrandbits(32 * count) & mask).to_bytes(4 * count, "little"))
