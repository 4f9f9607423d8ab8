"""Does Dynamo's indexer read every coalescing level as it reads none?

    python -m benchmarks.levels [--requests 60]

One stream of cached and evicted blocks is recorded at the levels off, adjacent, chain and compact by `EventRecorder`
(the requests of `benchmarks.coalesce`), and each level is published as a worker of its own to one standalone indexer of
Dynamo. After every window of 50 ms some prompts of the trace are asked for: all four workers must hold as much of each.
At the end its dump must name the same blocks for all four, and those that our index has. A difference is an error. The
last row is no cache but a forest whose blocks come and go many times within a window.
"""

import argparse
import contextlib
import random
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import zmq

from benchmarks import dynamo, loopback
from benchmarks.coalesce import LEVELS, PAGE_SIZE, TRACE, windows
from benchmarks.dynamo_indexer import DynamoIndexer
from benchmarks.fleet_publisher import address
from benchmarks.peers import Unavailable
from benchmarks.results import save
from benchmarks.workload import payload
from kvevents.coalescing import Level
from kvevents.events import BlockStored
from kvevents.hashing import HashChain
from kvevents.index import PrefixIndex
from kvevents.recorder import EventRecorder
from kvevents.simulation.traces import read_trace
from kvevents.wire import decode_batch

PROMPTS = 10
FOREST_NODES = 120
CHURN_WINDOWS = 200
CHURN_STEPS = 100
"""In a window."""
PATIENCE_S = 30.0
_MARK_TOKENS = 1 << 24
_MARK_HASHES = 1 << 40


class Streams:
    """The levels as workers of one indexer, a socket each."""

    def __init__(self, indexer: DynamoIndexer) -> None:
        self._indexer = indexer
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets = [self._context.socket(zmq.XPUB) for _ in LEVELS]
        self._next = [0] * len(LEVELS)
        self._marks = 0
        for socket in self._sockets:
            socket.sndhwm = 0
            socket.bind("tcp://127.0.0.1:*")
        indexer.follow([address(socket) for socket in self._sockets])
        for socket in self._sockets:
            socket.recv()  # its subscription

    def publish(self, level: int, data: bytes) -> None:
        self._sockets[level].send_multipart((b"", self._next[level].to_bytes(8, "big"), data))
        self._next[level] += 1

    def settle(self) -> None:
        """Wait until the indexer has all that was published: until it knows a block that comes after it.

        Raises:
            RuntimeError: it does not take it in.
        """
        self._marks += 1
        start = _MARK_TOKENS + self._marks * PAGE_SIZE
        tokens = list(range(start, start + PAGE_SIZE))
        mark = payload([BlockStored([_MARK_HASHES + self._marks], None, tokens, PAGE_SIZE, medium="GPU")])
        for level in range(len(LEVELS)):
            self.publish(level, mark)
        deadline = time.monotonic() + PATIENCE_S
        while len(self._indexer.depths(tokens)) < len(LEVELS):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Dynamo's indexer does not take in all levels within {PATIENCE_S:g} s")
            time.sleep(0.001)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._context.destroy(0)


class Forest:
    """Nodes of a few pages each, below one another: (parent, pages, tokens of the pages)."""

    def __init__(self, nodes: int) -> None:
        draw = random.Random(5)
        root = HashChain.root(PAGE_SIZE)
        self.parents: list[int | None] = []
        self.chains: list[HashChain] = []
        self.tokens: list[array[int]] = []
        for node in range(nodes):
            parent = draw.choice([None, *range(max(0, node - 30), node)])
            tokens = array("I", [draw.getrandbits(17) for _ in range(PAGE_SIZE * draw.randint(1, 4))])
            self.parents.append(parent)
            self.chains.append((root if parent is None else self.chains[parent]).extend(tokens))
            self.tokens.append(tokens)

    def prompt(self, node: int | None) -> "array[int]":
        """The tokens of a node and of all above it."""
        return array("I") if node is None else self.prompt(self.parents[node]) + self.tokens[node]

    def churn(self, level: Level) -> Iterator[bytes | None]:
        """Nodes come below nodes that are there, and go when nothing is below them, many times within a window."""
        draw = random.Random(6)
        recorder = EventRecorder(PAGE_SIZE, coalesce=level)
        held: set[int] = set()
        for window in range(CHURN_WINDOWS):
            for _ in range(CHURN_STEPS):
                node = draw.randrange(len(self.parents))
                parent = self.parents[node]
                if node in held:
                    if not any(self.parents[other] == node for other in held):
                        held.remove(node)
                        recorder.remove(self.chains[node])
                elif parent is None or parent in held:
                    held.add(node)
                    recorder.store(self.chains[node], self.tokens[node])
            yield recorder.take_batch(ts=window)


def measure(name: str, stream: Callable[[Level], Iterator[bytes | None]], prompts: Sequence[Any]) -> dict[str, Any]:
    index = PrefixIndex(PAGE_SIZE)
    events = dict.fromkeys(LEVELS, 0)
    answers = held = count = 0
    with contextlib.closing(DynamoIndexer(PAGE_SIZE)) as indexer, Streams(indexer) as streams:
        for count, batches in enumerate(zip(*map(stream, LEVELS), strict=True), start=1):
            for level, data in enumerate(batches):
                if data is not None:
                    streams.publish(level, data)
                    index.apply(LEVELS[level], data)
                    events[LEVELS[level]] += len(decode_batch(data).events)
            streams.settle()
            for prompt in prompts:
                held += compare(indexer, index, prompt)
                answers += 1
            if count % 100 == 0:
                print(f"  window {count}, {answers} prompts compared", file=sys.stderr)
        blocks = compare_dumps(indexer, index)
    if not held:
        raise AssertionError("no prompt was held at any time: nothing was compared")
    return {
        "stream": name,
        "windows": count,
        "events": events,
        "prompts_compared": answers,
        "of_them_held": held,
        "blocks_at_the_end": blocks,
        "differences": 0,
    }


def compare(indexer: DynamoIndexer, index: PrefixIndex, prompt: Any) -> bool:
    """Whether any level holds some of a prompt; all must hold as much of it, in Dynamo's view and in ours."""
    depths = indexer.depths(prompt)
    ours = {match.worker: match.total for match in index.match(prompt)}
    told = {LEVELS[worker]: depth for worker, depth in depths.items()}
    if told != ours or len(set(told.values())) > 1 or len(told) not in {0, len(LEVELS)}:
        raise AssertionError(f"a prompt is held as {told} by Dynamo's indexer, as {ours} by our index")
    return bool(told)


def compare_dumps(indexer: DynamoIndexer, index: PrefixIndex) -> int:
    """How many blocks each level leaves; all must leave the same."""
    held = indexer.blocks()
    for level, name in enumerate(LEVELS):
        ours = index.holdings(name)[0]["GPU"]
        theirs = {block for block in held.get(level, set()) if not _MARK_HASHES < block < _MARK_HASHES + (1 << 20)}
        if theirs != ours:
            raise AssertionError(
                f"level {name}: Dynamo's indexer holds {len(theirs - ours)} blocks more and {len(ours - theirs)} fewer"
            )
    return len(held[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=60)
    options = parser.parse_args()
    try:
        dynamo.install_indexer()
    except Unavailable as reason:
        print(f"levels: skipped: {reason}", file=sys.stderr)
        return
    loopback.enter()
    requests = read_trace(TRACE, limit=options.requests).requests
    asked = [request.tokens() for request in requests[:: max(1, len(requests) // PROMPTS)]]
    rows = []
    for in_flight in (16, 4):
        name = f"{len(requests)} requests of a trace, {in_flight} in flight"
        rows.append(measure(name, partial(windows, requests=requests, in_flight=in_flight, step_ms=10), asked))
    forest = Forest(FOREST_NODES)
    asked = [forest.prompt(node) for node in range(FOREST_NODES - PROMPTS, FOREST_NODES)]
    rows.append(measure("blocks that come and go within a window", forest.churn, asked))
    save("levels", __doc__ or "", rows, dynamo=dynamo.VERSION)


if __name__ == "__main__":
    main()
