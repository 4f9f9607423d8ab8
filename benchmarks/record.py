"""What does it cost an engine to announce a page, against SGLang's recorder and against SHA-256 alone?

    python -m benchmarks.record [--rounds 60]

One node of 64 pages whose hashes are not known yet is hashed, recorded as stored and encoded: `HashChain.extend`,
`EventRecorder.store`, `EventRecorder.take_batch`. SGLang's `KVCacheEventRecorder` and msgspec do the same for the same
tokens and give the same bytes. The floor is the same implementation of SHA-256 over the bytes that the digests take, in
one loop in Rust. The contestants take turns, 100 nodes each a round; a figure is the median of the rounds in processor
time. Tokens are arrays of 64-bit ids, as SGLang has them, unless a row says otherwise.
"""

import argparse
import random
import statistics
import time
from array import array
from collections.abc import Callable
from typing import Any

from benchmarks import sglang
from benchmarks.peers import Unavailable
from benchmarks.results import save
from kvevents._core.yardstick import sha256_floor
from kvevents.hashing import HashChain
from kvevents.recorder import EventRecorder

PAGES = 64
PAGE_SIZES = (1, 16, 64)
NODES = 100
"""Nodes that a contestant records in one round."""
VOCABULARY = 32_000

Contestant = Callable[[], Callable[[], Any]]
"""Makes ready for a node, then records it; only the second call is timed."""


def alternate(contestants: dict[str, Contestant], rounds: int) -> dict[str, float]:
    """Median seconds that each contestant takes for a node."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            ready = [contestant() for _ in range(NODES)]
            start = time.process_time()
            for record in ready:
                record()
            times[name].append((time.process_time() - start) / NODES)
    return {name: statistics.median(runs) for name, runs in times.items()}


def ours(tokens: "array[int]", page_size: int) -> Contestant:
    root, recorder = HashChain.root(page_size), EventRecorder(page_size)

    def record() -> bytes | None:
        chain = root.extend(tokens)
        recorder.store(chain, tokens)
        return recorder.take_batch(ts=1.0)

    return lambda: record


def hashed(tokens: "array[int]", page_size: int) -> Contestant:
    root = HashChain.root(page_size)
    return lambda: lambda: root.extend(tokens)


def floor(tokens: "array[int]", page_size: int) -> Contestant:
    return lambda: lambda: sha256_floor(tokens, page_size)


def peer(tokens: "array[int]", page_size: int) -> Contestant:
    recorder = sglang.Recorder(page_size)
    if recorder.record(recorder.node(tokens)) != ours(tokens, page_size)()():
        raise AssertionError("SGLang's bytes differ from ours")

    def contestant() -> Callable[[], bytes]:
        node = recorder.node(tokens)
        return lambda: recorder.record(node)

    return contestant


def measure(page_size: int, rounds: int) -> dict[str, Any]:
    draw = random.Random(page_size)
    ids = [draw.randrange(VOCABULARY) for _ in range(PAGES * page_size)]
    wide, narrow = array("q", ids), array("I", ids)
    contestants = {
        "floor": floor(narrow, page_size),
        "hash": hashed(wide, page_size),
        "ours": ours(wide, page_size),
        "ours, 32-bit ids": ours(narrow, page_size),
    }
    row: dict[str, Any] = {"page_size": page_size}
    try:
        contestants["sglang"] = peer(wide, page_size)
    except Unavailable as reason:
        row["sglang"] = f"skipped: {reason}"
    times = alternate(contestants, rounds)
    row["ns_per_page"] = {name: round(seconds * 1e9 / PAGES, 1) for name, seconds in times.items()}
    row["ours_over_floor"] = round(times["ours"] / times["floor"], 2)
    row["ours_over_floor, 32-bit ids"] = round(times["ours, 32-bit ids"] / times["floor"], 2)
    if "sglang" in times:
        row["sglang_over_ours"] = round(times["sglang"] / times["ours"], 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    rows = [measure(page_size, options.rounds) for page_size in PAGE_SIZES]
    save("record", __doc__ or "", rows, sglang=sglang.VERSION)


if __name__ == "__main__":
    main()
