"""What does a page cost on its way down to lower tiers and up again, bookkeeping and events, without its bytes?

    python -m benchmarks.tiers [--rounds 6]

50 prompts of 64 pages each, in a new cache every round; the time of the processor of each step over all of them, per
page, medians of the rounds. Each step announces what it does, and its events are taken as bytes:

insert: into a cache without lower tiers, and into one with them, which submits the backups.
backup: copies to host memory are acknowledged; with a store they are also written to it: into memory, or into files
that are not flushed to the disk.
evict: from the device, everything; host memory keeps it. Then from host memory, where a store keeps it.
load: back to the device, from host memory, or from the store through host memory.

There are no bytes behind the slots, so what is left of a copy is the call that begins it; a block in a file is its
tokens and its name.
"""

import argparse
import contextlib
import itertools
import statistics
import tempfile
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cache import PAGE_SIZES, PAGES, PROMPTS, prompts
from benchmarks.results import save
from kvevents.caches import FileStore, HiRadixCache, MemoryStore, TierStore, UnifiedRadixCache

BLOCKS = PAGES * PROMPTS


@contextlib.contextmanager
def no_store() -> Iterator[None]:
    yield None


@contextlib.contextmanager
def in_memory() -> Iterator[TierStore]:
    yield MemoryStore(BLOCKS)


@contextlib.contextmanager
def in_files() -> Iterator[TierStore]:
    with tempfile.TemporaryDirectory() as folder, FileStore(folder, capacity=BLOCKS, sync=False) as store:
        yield store


STORES: dict[str, Callable[[], contextlib.AbstractContextManager[TierStore | None]]] = {
    "host memory": no_store,
    "store in memory": in_memory,
    "store in files": in_files,
}


class Stopwatch:
    """The processor's time of steps by name, each over all prompts of a round."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = defaultdict(list)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time what is done within."""
        start = time.process_time()
        yield
        self._times[name].append(time.process_time() - start)

    def us_per_page(self) -> dict[str, float]:
        """Medians."""
        return {name: round(statistics.median(times) * 1e6 / BLOCKS, 3) for name, times in self._times.items()}


def without_tiers(page_size: int, new: "list[array[int]]", watch: Stopwatch) -> None:
    cache = UnifiedRadixCache(page_size=page_size, capacity=BLOCKS * page_size)
    with watch.step("insert"):
        for tokens in new:
            cache.insert(tokens)
            cache.take_batch(ts=1.0)
    with watch.step("evict"):
        cache.evict(BLOCKS * page_size)
        cache.take_batch(ts=1.0)


def with_tiers(page_size: int, new: "list[array[int]]", watch: Stopwatch, store: TierStore | None) -> None:
    tokens = BLOCKS * page_size
    cache = HiRadixCache(page_size=page_size, capacity=tokens, host_tokens=tokens, storage=store, load_back_threshold=1)
    with watch.step("insert"):
        for prompt in new:
            cache.insert(prompt)
            cache.take_batch(ts=1.0)
    with watch.step("backup"):
        cache.poll()
        cache.take_batch(ts=1.0)
    with watch.step("evict"):
        cache.evict(tokens)
        cache.take_batch(ts=1.0)
    if store is not None:
        with watch.step("evict from host memory"):
            cache.evict_host(tokens)
            cache.take_batch(ts=1.0)
    nodes = [cache.match_prefix(prompt).node for prompt in new]
    with watch.step("load"):
        for node in nodes:
            if not cache.load_back(node):
                raise AssertionError(f"{node} was not loaded: {cache.failures}")
            cache.take_batch(ts=1.0)
    held = {tier.value: sum(each == tier for _, each in cache.holdings()) for tier in {t for _, t in cache.holdings()}}
    if any(count != BLOCKS for count in held.values()) or cache.failures:
        raise AssertionError(f"expected {BLOCKS} blocks in every tier, got {held}; failures: {cache.failures}")


def measure(page_size: int, rounds: int) -> list[dict[str, Any]]:
    new = prompts(page_size, seed=page_size)
    watches = {name: Stopwatch() for name in ("none", *STORES)}
    for _, (name, make) in itertools.product(range(rounds), STORES.items()):
        if name == next(iter(STORES)):
            without_tiers(page_size, new, watches["none"])
        with make() as store:
            with_tiers(page_size, new, watches[name], store)
    return [
        {"page_size": page_size, "below_the_device": name, "us_per_page": watch.us_per_page()}
        for name, watch in watches.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    rows = [row for page_size in PAGE_SIZES for row in measure(page_size, options.rounds)]
    save("tiers", __doc__ or "", rows)


if __name__ == "__main__":
    main()
