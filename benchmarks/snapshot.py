"""How long do a snapshot and its restoration take, and how large is it?

    python -m benchmarks.snapshot [--blocks 1000000] [--rounds 5]

Eight workers that share a quarter of their blocks. Processor time, medians; a restored index is checked, and its own
snapshot has the same bytes.
"""

import argparse
import gc

from benchmarks.measure import alternate, resident_bytes
from benchmarks.results import save
from benchmarks.workload import batches, generate
from kvevents.index import PrefixIndex


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    fleet = generate(options.blocks)
    index = PrefixIndex(fleet.block_size)
    for worker, data in batches(fleet):
        index.apply(f"worker-{worker}", data)
    gc.collect()
    before = resident_bytes()
    taken = index.snapshot()
    grown = resident_bytes() - before

    def restore() -> PrefixIndex:
        other = PrefixIndex(fleet.block_size)
        other.restore(taken)
        return other

    assert restore().snapshot() == taken
    times = alternate({"snapshot": index.snapshot, "restore": restore}, options.rounds)
    sizes = {"snapshot_mb": round(len(taken) / 1e6, 1), "index_mb": round(index.stats().memory_bytes / 1e6, 1)}
    took = {f"{name}_s": round(time, 3) for name, time in times.items()}
    row = {"stored": fleet.stored, **took, **sizes, "resident_growth_mb": round(grown / 1e6, 1)}
    save("snapshot", __doc__ or "", [row])


if __name__ == "__main__":
    main()
