"""What does our recorder cost in SGLang's Python tree, against SGLang's own?

    python -m benchmarks.plugin [--rounds 60]

One node of 64 pages whose hashes are not known yet is recorded as stored by SGLang's recorder and by the one that our
plugin puts in its place, which is made of it and hashes with its native hash; the events are taken and encoded with
msgspec, as SGLang's publisher does it, and the bytes are the same. Besides: what our publisher does on the engine's
thread, encoding and merging ("encode and merge"); SGLang's leaves the encoding ("encode") to its thread. The
contestants take turns, 100 nodes each a round; medians of the rounds in processor time of the calling thread.
"""

import argparse
import random
import statistics
import time
from array import array
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks import sglang
from benchmarks.peers import Unavailable
from benchmarks.results import save
from kvevents.coalescing import Coalescer
from kvevents.integrations.sglang_recorder import make_recorder

PAGES = 64
PAGE_SIZES = (1, 16, 64)
NODES = 100
VOCABULARY = 32_000


class Tree:
    """Nodes below a root, and recorders over them.

    Raises:
        Unavailable: SGLang cannot be had.
    """

    def __init__(self, page_size: int) -> None:
        self.events = sglang.load("sglang.srt.mem_cache.events")
        self._radix = sglang.load("sglang.srt.mem_cache.radix_cache")
        self.batch = sglang.load("sglang.srt.disaggregation.kv_events").KVEventBatch
        self._root = self._radix.TreeNode()
        self._root.key, self._root.hash_value = self._radix.RadixKey([]), []
        self.theirs = self.events.KVCacheEventRecorder(enabled=True, page_size=page_size)
        self.ours = make_recorder(self.events)(enabled=True, page_size=page_size)

    def node(self, tokens: "array[int]") -> Any:
        node = self._radix.TreeNode()
        node.parent, node.key = self._root, self._radix.RadixKey(tokens)
        return node

    def record(self, recorder: Any, node: Any) -> Any:
        """Record a node and take the batch."""
        recorder.record_store(node)
        return self.batch(ts=1.0, events=recorder.take(), attn_dp_rank=0)


def alternate(contestants: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]], rounds: int) -> dict[str, float]:
    """Median microseconds of each contestant's second function, called with what its first makes."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, (make, call) in contestants.items():
            made = [make() for _ in range(NODES)]
            start = time.thread_time()
            for each in made:
                call(each)
            times[name].append((time.thread_time() - start) / NODES * 1e6)
    return {name: statistics.median(runs) for name, runs in times.items()}


def measure(page_size: int, rounds: int) -> dict[str, Any]:
    draw = random.Random(page_size)
    tokens = array("q", [draw.randrange(VOCABULARY) for _ in range(PAGES * page_size)])
    tree = Tree(page_size)
    encode = msgspec.msgpack.Encoder().encode
    expected = encode(tree.record(tree.theirs, tree.node(tokens)))
    if encode(tree.record(tree.ours, tree.node(tokens))) != expected:
        raise AssertionError("our recorder's bytes differ from SGLang's")
    coalescer = Coalescer("chain", from_start=True)

    def encode_and_merge(batch: Any) -> Any:
        coalescer.add(encode(batch))
        return coalescer.take_batch()

    times = alternate(
        {
            "sglang": (lambda: tree.node(tokens), lambda node: tree.record(tree.theirs, node)),
            "ours": (lambda: tree.node(tokens), lambda node: tree.record(tree.ours, node)),
            "encode": (lambda: tree.record(tree.ours, tree.node(tokens)), encode),
            "encode and merge": (lambda: tree.record(tree.ours, tree.node(tokens)), encode_and_merge),
        },
        rounds,
    )
    return {
        "page_size": page_size,
        "us_per_page": {name: round(us / PAGES, 3) for name, us in times.items()},
        "sglang_over_ours": round(times["sglang"] / times["ours"], 1),
        "engine_thread_us_per_batch": round(times["encode and merge"], 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    try:
        rows = [measure(page_size, options.rounds) for page_size in PAGE_SIZES]
    except Unavailable as reason:
        print(f"plugin: skipped: {reason}")
        return 0
    save("plugin", __doc__ or "", rows, sglang=sglang.VERSION)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
