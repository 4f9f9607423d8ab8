"""How long does a match by tokens take, from Python, hashing included?

    python -m benchmarks.match [--blocks 1000000] [--calls 20000]

Prompts are int32 buffers, each held whole by some worker of eight; without and with a thread that applies 200,000
blocks a second, half of them removals. Reader and writer have a core each. Wall time: on a machine with other work the
99th percentile is the scheduler's, unless the run goes before it (`chrt -f 1 python -m benchmarks.match`).
"""

import argparse
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.measure import latencies, percentile
from benchmarks.results import save
from benchmarks.workload import Fleet, batches, generate
from kvevents.index import PrefixIndex

CORES = os.sched_getaffinity(0)
LENGTHS = (32, 256, 2048)
WRITES_PER_S = 200_000


@contextmanager
def writer(index: PrefixIndex, block_size: int) -> Iterator[None]:
    """Another worker stores blocks at a steady pace, and loses them again."""
    fleet = generate(200_000, block_size, workers=1, seed=2)
    stores = [data for _, data in batches(fleet)]
    removals = list(fleet.removals(0))
    payloads = stores + removals
    pause = 2 * fleet.stored / len(payloads) / WRITES_PER_S
    done = threading.Event()

    def write() -> None:
        on_core(1)
        due = time.perf_counter()
        while not done.is_set():
            for data in payloads:
                index.apply("writer", data)
                due += pause
                if done.wait(max(0.0, due - time.perf_counter())):
                    return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def on_core(number: int) -> None:
    """Keep this thread to one core of those the process may use, if there are several."""
    cores = sorted(CORES)
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[number]})


def written(index: PrefixIndex) -> int:
    """Blocks that the writer has stored and removed."""
    return sum(source.stored + source.removed for source in index.stats().sources if source.worker == "writer")


def measure(index: PrefixIndex, fleet: Fleet, calls: int) -> Iterator[dict[str, float]]:
    for length in LENGTHS:
        prompts = fleet.longest(64, length)
        assert all(index.match(prompt)[0].usable == length for prompt in prompts)
        before, start = written(index), time.perf_counter()
        times = latencies(index.match, prompts, calls)
        writes_per_s = (written(index) - before) / (time.perf_counter() - start)
        p50, p99 = percentile(times, 50) * 1e6, percentile(times, 99) * 1e6
        figures = {"p50_us": round(p50, 2), "p99_us": round(p99, 2), "p99_over_p50": round(p99 / p50, 2)}
        yield {"blocks": length, "writes_per_s": round(writes_per_s), **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, default=20_000)
    options = parser.parse_args()
    fleet = generate(options.blocks)
    index = PrefixIndex(fleet.block_size)
    for worker, data in batches(fleet):
        index.apply(f"worker-{worker}", data)
    on_core(0)
    rows = list(measure(index, fleet, options.calls))
    with writer(index, fleet.block_size):
        rows += measure(index, fleet, options.calls)
    save("match", __doc__ or "", rows)


if __name__ == "__main__":
    main()
