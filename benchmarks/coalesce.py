"""How many events do the levels of coalescing leave, where requests interleave?

    python -m benchmarks.coalesce [--requests 100]

A real trace is prefilled into a `RadixCache`: so many requests at a time, each 128 tokens of its prompt in every step
of the engine, as a scheduler does that is fair to them; the oldest pages are evicted where memory runs short. Every
50 ms the recorder's batch is taken. Each level's batches go into an index and into Dynamo's radix tree, a reader that
knows the reference rule only; on the way and at the end all indices must hold the same blocks, and all trees must
answer the prompts alike.
"""

import argparse
import itertools
import sys
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from benchmarks import dynamo
from benchmarks.peers import Unavailable
from benchmarks.results import save
from kvevents.caches import RadixCache
from kvevents.coalescing import Level
from kvevents.index import PrefixIndex
from kvevents.recorder import EventRecorder
from kvevents.simulation.traces import TraceRequest, read_trace
from kvevents.wire import decode_batch

LEVELS: tuple[Level, ...] = get_args(Level)
TRACE = Path(__file__).parent.parent / "data" / "mooncake_conversation_first1000.jsonl"
PAGE_SIZE = 16
CAPACITY = 300_000
"""Tokens that fit into the cache: less than the trace has."""
CHUNK = 128
"""Tokens that a request gets in a step."""
WINDOW_MS = 50
COMPARE_EVERY = 25
"""Windows between two comparisons."""
PROMPTS = 10
"""Prompts of the trace that are asked for at each."""


class Prefill:
    """One request on its way into the cache."""

    def __init__(self, cache: RadixCache, request: TraceRequest) -> None:
        self._cache = cache
        self._tokens = request.tokens()
        self.length = len(self._tokens)
        self._done = 0
        self._node = cache.match_prefix([]).node
        cache.lock(self._node)

    def step(self) -> bool:
        """Compute and cache one chunk more; whether the prompt is done."""
        cache = self._cache
        self._done = min(self._done + CHUNK, self.length)
        prefix = self._tokens[: self._done]
        cache.insert(prefix)
        node = cache.match_prefix(prefix).node
        cache.lock(node)
        cache.unlock(self._node)
        self._node = node
        if self._done == self.length:
            cache.unlock(node)
            return True
        return False


def windows(level: Level, requests: list[TraceRequest], in_flight: int, step_ms: int) -> Iterator[bytes | None]:
    """The batch of each window."""
    recorder = EventRecorder(PAGE_SIZE, coalesce=level)
    cache = RadixCache(page_size=PAGE_SIZE, capacity=CAPACITY, recorder=recorder)
    waiting = deque(requests)
    running: list[Prefill] = []
    for step in itertools.count(1):
        while waiting and len(running) < in_flight:
            if sum(prefill.length for prefill in running) + waiting[0].input_length > CAPACITY:
                break
            running.append(Prefill(cache, waiting.popleft()))
        running = [prefill for prefill in running if not prefill.step()]
        if step * step_ms % WINDOW_MS == 0 or not running:
            yield recorder.take_batch(ts=step * step_ms / 1000)
        if not running:
            return


class Reader:
    """What a level's batches tell."""

    def __init__(self, *, with_dynamo: bool) -> None:
        self.index = PrefixIndex(PAGE_SIZE)
        self.tree = dynamo.Tree(PAGE_SIZE) if with_dynamo else None
        self.events = self.bytes = 0

    def apply(self, data: bytes) -> None:
        self.events += len(decode_batch(data).events)
        self.bytes += len(data)
        self.index.apply("engine", data)
        if self.tree is not None:
            self.tree.apply(data)


def measure(requests: list[TraceRequest], in_flight: int, step_ms: int, *, with_dynamo: bool) -> dict[str, Any]:
    readers = {level: Reader(with_dynamo=with_dynamo) for level in LEVELS}
    prompts = [request.tokens() for request in requests[:: max(1, len(requests) // PROMPTS)]]
    compared = count = 0
    streams = [windows(level, requests, in_flight, step_ms) for level in LEVELS]
    for count, batches in enumerate(zip(*streams, strict=True), start=1):
        for reader, data in zip(readers.values(), batches, strict=True):
            if data is not None:
                reader.apply(data)
        if count % COMPARE_EVERY == 0:
            compared += compare([*readers.values()], prompts)
    compared += compare([*readers.values()], prompts)
    events = {level: reader.events for level, reader in readers.items()}
    return {
        "in_flight": in_flight,
        "step_ms": step_ms,
        "windows": count,
        "events": events,
        "bytes": {level: reader.bytes for level, reader in readers.items()},
        "adjacent_over_chain": round(events["adjacent"] / events["chain"], 2),
        "adjacent_over_compact": round(events["adjacent"] / events["compact"], 2),
        "times_compared": compared,
        "readers": ["PrefixIndex", "Dynamo's RadixTree"] if with_dynamo else ["PrefixIndex"],
    }


def compare(readers: list[Reader], prompts: "list[array[int]]") -> int:
    """1 if all readers were told the same, else an error."""
    held = [reader.index.holdings("engine") for reader in readers]
    if any(other != held[0] for other in held):
        raise AssertionError(f"the levels {LEVELS} leave different blocks")
    for prompt in prompts:
        depths = {reader.tree.depth(prompt) for reader in readers if reader.tree is not None}
        if len(depths) > 1:
            raise AssertionError(f"the levels {LEVELS} give Dynamo's tree different depths of a prompt: {depths}")
    return 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100)
    options = parser.parse_args()
    requests = read_trace(TRACE, limit=options.requests).requests
    with_dynamo = True
    try:
        dynamo.Tree(PAGE_SIZE)
    except Unavailable as reason:
        print(f"coalesce: without Dynamo's tree: {reason}", file=sys.stderr)
        with_dynamo = False
    rows = [
        measure(requests, in_flight, step_ms, with_dynamo=with_dynamo)
        for in_flight, step_ms in ((16, 5), (16, 10), (4, 10), (16, 25))
    ]
    save("coalesce", __doc__ or "", rows, dynamo=dynamo.VERSION)


if __name__ == "__main__":
    main()
