"""What does it cost to apply a batch, against msgspec's untyped decode of the same bytes?

    python -m benchmarks.apply [--blocks 1000000] [--rounds 5]

The decode alone makes Python objects of the payload; an index in Python would begin there.
"""

import argparse
from typing import Any

import msgspec

from benchmarks.measure import alternate, report
from benchmarks.workload import batches, generate
from kvevents.index import PrefixIndex

EVENT_BLOCKS = {"coalesced": 96, "one block an event": 1}


def measure(block_size: int, event_blocks: int, blocks: int, rounds: int) -> dict[str, Any]:
    fleet = generate(blocks, block_size)
    payloads = [(f"worker-{worker}", data) for worker, data in batches(fleet, event_blocks)]

    def decode() -> None:
        for _, data in payloads:
            msgspec.msgpack.decode(data)

    def apply() -> PrefixIndex:
        index = PrefixIndex(block_size)
        for worker, data in payloads:
            index.apply(worker, data)
        return index

    times = alternate({"decode": decode, "apply": apply}, rounds)
    per_block = {name: time / fleet.stored * 1e9 for name, time in times.items()}
    events = sum(-(-len(store.blocks) // event_blocks) for store in fleet.stores)
    return {
        "block_size": block_size,
        "blocks": fleet.stored,
        "blocks_per_event": round(fleet.stored / events, 1),
        "apply_ns_per_block": round(per_block["apply"], 1),
        "decode_ns_per_block": round(per_block["decode"], 1),
        "apply_over_decode": round(per_block["apply"] / per_block["decode"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for block_size, share in ((16, 1), (64, 4)):
        for name, event_blocks in EVENT_BLOCKS.items():
            row = measure(block_size, event_blocks, options.blocks // share, options.rounds)
            report("apply", [{"events": name, **row}])


if __name__ == "__main__":
    main()
