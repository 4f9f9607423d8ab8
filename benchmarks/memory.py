"""What does a stored block cost in memory, and what is left when all is removed?

    python -m benchmarks.memory [--blocks 1000000]

Eight workers that share a quarter of their blocks; accounted by the index itself and seen from outside as growth of
the process. Payloads are made one by one, so that nothing else grows.
"""

import argparse
import gc

from benchmarks.measure import resident_bytes
from benchmarks.results import save
from benchmarks.workload import batches, generate, payload
from kvevents.index import PrefixIndex


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    options = parser.parse_args()
    fleet = generate(options.blocks)
    index = PrefixIndex(fleet.block_size)
    for worker in range(fleet.workers):
        index.apply(f"worker-{worker}", payload([]))
    # One batch warms up what decoding and applying need of their own.
    warm_up = PrefixIndex(fleet.block_size)
    for (_, data), _ in zip(batches(fleet), range(200), strict=False):
        warm_up.apply("w", data)
    del warm_up
    gc.collect()
    resident, empty = resident_bytes(), index.stats().memory_bytes
    for worker, data in batches(fleet):
        index.apply(f"worker-{worker}", data)
    gc.collect()
    full, grown = index.stats().memory_bytes - empty, resident_bytes() - resident
    row = {
        "stored": fleet.stored,
        "distinct": index.stats().blocks,
        "accounted_bytes_per_stored": round(full / fleet.stored, 1),
        "resident_bytes_per_stored": round(grown / fleet.stored, 1),
    }
    for worker in range(fleet.workers):
        for data in fleet.removals(worker):
            index.apply(f"worker-{worker}", data)
    gc.collect()
    left = index.stats().memory_bytes
    row |= {"accounted_left_over_empty": round(left / empty, 3)}
    row |= {"resident_left_bytes_per_stored": round((resident_bytes() - resident) / fleet.stored, 1)}
    save("memory", __doc__ or "", [row])


if __name__ == "__main__":
    main()
