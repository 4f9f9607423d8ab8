"""What does a prefix cache cost an engine, against SGLang's caches, and does it stay as it is over a long run?

    python -m benchmarks.cache [--rounds 40] [--operations 200000] [--torch]

insert: one new prompt of 64 pages is cached and announced, and its events are taken as bytes. 50 prompts a round, each
round in a new cache; the contestants take turns, medians of the rounds, in time of the processor. SGLang is given the
slots; so is "ours, slots passed", while "ours" also takes them from the allocator. All give the same bytes.

match: a cached prompt of 2,048 pages of 16 tokens over 8 nodes is matched; from a buffer of 32-bit ids, slots included,
by ours, from 64-bit ids, as it requires, by SGLang.

mixed: requests with Zipf-distributed prompts are matched, locked, inserted and unlocked in a cache that is always full,
and batches are taken; now and then an eviction asks for more than 1,000 nodes, which is counted apart. Each operation's
own time of the processor, garbage collection included, how much of the slowest ones that was, and the resident memory
in the second half of the run: samples at even distances, the last one at the end, with the nodes of the tree. The first
half is the warm-up: the tree has as many pages all the time, but up to about 900,000 operations ever more nodes.

SGLang's tree core in Rust is linked against PyTorch, which `--torch` fetches (several gigabytes). It is measured
without the cache around it. Without PyTorch the Python cache keeps slots in arrays, which are cheaper than tensors.
"""

import argparse
import random
import statistics
import time
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import sglang, sglang_caches
from benchmarks.measure import percentile
from benchmarks.peers import Unavailable
from benchmarks.pressure import Pressure
from benchmarks.results import save
from kvevents.caches import RadixCache, UnifiedRadixCache

PAGE_SIZES = (1, 16, 64)
PAGES = 64
PROMPTS = 50
"""Inserted in a round."""
MATCH_PAGES = 2048
MATCH_NODES = 8
MATCHES = 20
"""In a round."""
VOCABULARY = 32_000

Ours = type[RadixCache] | type[UnifiedRadixCache]
Peer = type[sglang_caches.RadixCache] | type[sglang_caches.TreeCore]
OURS: dict[str, Ours] = {"radix": RadixCache, "unified": UnifiedRadixCache}
PEERS: dict[str, Peer] = {"sglang radix": sglang_caches.RadixCache, "sglang rust core": sglang_caches.TreeCore}

Work = Callable[[], Any]
Contestant = Callable[[], list[Work]]
"""Makes ready for a round; only the calls that it returns are timed."""


def alternate(contestants: dict[str, Contestant], rounds: int) -> dict[str, float]:
    """Median seconds of each contestant's calls. The order is drawn anew in each round: each finds what others left."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    order, draw = list(contestants), random.Random(1)
    for _ in range(rounds):
        draw.shuffle(order)
        for name in order:
            calls = contestants[name]()
            start = time.process_time()
            for call in calls:
                call()
            times[name].append((time.process_time() - start) / len(calls))
    return {name: statistics.median(runs) for name, runs in times.items()}


def prompts(page_size: int, seed: int) -> "list[array[int]]":
    draw = random.Random(seed)
    return [array("q", draw.choices(range(VOCABULARY), k=PAGES * page_size)) for _ in range(PROMPTS)]


def ours_inserting(kind: Ours, page_size: int, new: "list[array[int]]", *, passed: bool) -> Contestant:
    def insert(cache: RadixCache | UnifiedRadixCache, tokens: "array[int]", slots: "array[int] | None") -> bytes | None:
        cache.insert(tokens, slots)
        return cache.take_batch(ts=1.0)

    def ready() -> list[Work]:
        cache = kind(page_size=page_size, capacity=2 * PROMPTS * PAGES * page_size)
        cache.take_batch()
        slots = [cache.allocate(len(tokens)) if passed else None for tokens in new]
        return [partial(insert, cache, *given) for given in zip(new, slots, strict=True)]

    return ready


def peer_inserting(kind: Peer, page_size: int, new: "list[array[int]]") -> Contestant:
    def insert(cache: sglang_caches.Cache, key: Any, slots: Any) -> bytes:
        cache.insert(key, slots)
        return cache.take()

    def ready() -> list[Work]:
        cache = kind(page_size)
        return [partial(insert, cache, cache.key(tokens), cache.slots(tokens)) for tokens in new]

    return ready


def peers(skipped: dict[str, str]) -> dict[str, Peer]:
    """Those that can be had; why the others cannot goes into `skipped`."""
    found = {}
    for name, kind in PEERS.items():
        try:
            kind(1)
            found[name] = kind
        except Unavailable as reason:
            skipped[name] = f"skipped: {reason}"
    return found


def measure_insert(page_size: int, rounds: int, rivals: dict[str, Peer]) -> dict[str, Any]:
    new = prompts(page_size, seed=page_size)
    contestants = {name: ours_inserting(kind, page_size, new, passed=False) for name, kind in OURS.items()}
    contestants |= {
        f"{name}, slots passed": ours_inserting(kind, page_size, new, passed=True) for name, kind in OURS.items()
    }
    contestants |= {name: peer_inserting(kind, page_size, new) for name, kind in rivals.items()}
    said = {name: [call() for call in contestant()] for name, contestant in contestants.items()}
    if any(batches != said["radix"] for batches in said.values()):
        raise AssertionError(f"pages of {page_size}: not all of {', '.join(said)} announce the same bytes")
    times = alternate(contestants, rounds)
    row = {
        "figure": "insert",
        "page_size": page_size,
        "us_per_page": {name: round(seconds * 1e6 / PAGES, 3) for name, seconds in times.items()},
    }
    return row | over(times, rivals)


def over(times: dict[str, float], rivals: dict[str, Peer]) -> dict[str, Any]:
    """How many times slower the others are."""
    return {
        f"{rival}_over_ours": {name: round(times[rival] / times[name], 2) for name in times if name not in rivals}
        for rival in rivals
    }


def repeated(match: Work) -> list[Work]:
    return [match] * MATCHES


def peer_matching(cache: sglang_caches.Cache, tokens: "array[int]") -> Any:
    return cache.match(cache.key(tokens))


def measure_match(rounds: int, rivals: dict[str, Peer], page_size: int = 16) -> dict[str, Any]:
    length = MATCH_PAGES * page_size
    draw = random.Random(1)
    wide = array("q", draw.choices(range(VOCABULARY), k=length))
    narrow = array("i", wide)
    ends = [length * part // MATCH_NODES for part in range(1, MATCH_NODES + 1)]
    contestants: dict[str, Contestant] = {}
    for name, kind in OURS.items():
        ours = kind(page_size=page_size, capacity=length)
        for end in ends:
            ours.insert(wide[:end])
        found = ours.match_prefix(narrow)
        assert (found.length, len(found.slots)) == (length, length)
        contestants[name] = partial(repeated, partial(ours.match_prefix, narrow))
    for name, rival in rivals.items():
        theirs = rival(page_size)
        for end in ends:
            theirs.insert(theirs.key(wide[:end]), theirs.slots(wide[:end]))
        contestants[name] = partial(repeated, partial(peer_matching, theirs, wide))
    times = alternate(contestants, rounds)
    row = {
        "figure": "match",
        "pages": MATCH_PAGES,
        "nodes": MATCH_NODES,
        "page_size": page_size,
        "ns_per_page": {name: round(seconds * 1e9 / MATCH_PAGES, 2) for name, seconds in times.items()},
    }
    return row | over(times, rivals)


def measure_mixed(operations: int) -> dict[str, Any]:
    run = Pressure(operations)
    run.run()
    times = sorted(map(float, run.times[: run.done]))
    resident = run.resident
    tenth = max(len(resident) // 10, 1)
    return {
        "figure": "mixed",
        "operations": operations,
        "us": {f"p{percent:g}": round(percentile(times, percent) / 1e3, 1) for percent in (50, 99, 99.9, 99.99, 100)},
        "large_evictions": [{"nodes": nodes, "ms": round(spent / 1e6, 1)} for nodes, spent in run.large][:20],
        "slowest": [
            {"call": call, "ms": round(spent / 1e6, 1), "of_it_garbage_collection": round(collecting / 1e6, 1)}
            for call, spent, collecting in sorted(run.slow, key=lambda slow: -slow.nanoseconds)[:5]
        ],
        "nodes": [*run.nodes[::tenth], run.nodes[-1]],
        "resident_mb": [round(size / 1e6, 1) for size in [*resident[::tenth], resident[-1]]],
        "resident_end_over_start": round(statistics.mean(resident[-tenth:]) / statistics.mean(resident[:tenth]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--operations", type=int, default=200_000, help="of the mixed run")
    parser.add_argument("--torch", action="store_true", help="install PyTorch for SGLang's caches, if it is not there")
    options = parser.parse_args()
    # First, so that nothing else is in memory.
    rows = [measure_mixed(options.operations)]
    reasons: dict[str, str] = {}
    try:
        sglang_caches.load_torch(fetch=options.torch)
    except Unavailable as reason:
        reasons["torch"] = f"skipped: {reason}"
    rivals = peers(reasons)
    measured = [measure_insert(page_size, options.rounds, rivals) for page_size in PAGE_SIZES]
    measured.append(measure_match(options.rounds, rivals))
    rows = [row | reasons for row in measured] + rows
    slots = sglang_caches.TORCH if sglang.is_real("torch") else "none"
    save("cache", __doc__ or "", rows, sglang=sglang.VERSION, torch=slots)


if __name__ == "__main__":
    main()
