"""What does it cost to apply a batch, against msgspec's untyped decode of the same bytes, and against Dynamo's tree?

    python -m benchmarks.apply [--blocks 1000000] [--rounds 5]

Eight workers that share a quarter of their blocks, from an empty index on. The decode alone makes Python objects of
the payloads; an index in Python would begin there. Dynamo's radix tree gets its own messages with hashes instead of
tokens, made beforehand, and has applied them when it has answered a question. What its own function takes to hash the
tokens, from lists made beforehand, is measured beside and counts for it in the ratio, as hashing does for ours; what
it takes to read a payload does not. Processor time, contestants in turns, medians.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks import dynamo
from benchmarks.measure import alternate
from benchmarks.peers import Unavailable
from benchmarks.results import save
from benchmarks.workload import batches, generate
from kvevents.index import PrefixIndex
from kvevents.wire import decode_batch

EVENT_BLOCKS = {"coalesced": 96, "one block an event": 1}


def contestants(block_size: int, payloads: list[tuple[int, bytes]]) -> dict[str, Callable[[], Any]]:
    workers = [f"worker-{worker}" for worker, _ in payloads]

    def decode() -> None:
        for _, data in payloads:
            msgspec.msgpack.decode(data)

    def apply() -> PrefixIndex:
        index = PrefixIndex(block_size)
        for worker, (_, data) in zip(workers, payloads, strict=True):
            index.apply(worker, data)
        return index

    return {"decode": decode, "apply": apply}


def tree(block_size: int, payloads: list[tuple[int, bytes]]) -> dict[str, Callable[[], Any]]:
    """Dynamo's part: its tree, and its hashing of the tokens; none where it cannot be had."""
    try:
        maker = dynamo.Tree(block_size)
    except Unavailable as reason:
        print(f"apply: without Dynamo's tree: {reason}", file=sys.stderr)
        return {}
    messages = [(worker, maker.messages(data)) for worker, data in payloads]
    tokens = [event.token_ids for _, data in payloads for event in decode_batch(data).events]  # type: ignore[union-attr]

    def take() -> dynamo.Tree:
        taker = dynamo.Tree(block_size)
        for worker, batch in messages:
            taker.take(worker, batch)
        taker.depth(range(block_size))
        return taker

    def digest() -> None:
        for ids in tokens:
            maker.hash(ids)

    return {"dynamo": take, "dynamo_hashing": digest}


def measure(name: str, block_size: int, blocks: int, rounds: int) -> dict[str, Any]:
    fleet = generate(blocks, block_size)
    event_blocks = EVENT_BLOCKS[name]
    payloads = list(batches(fleet, event_blocks))
    runs = contestants(block_size, payloads) | tree(block_size, payloads)
    per_block = {name: time / fleet.stored * 1e9 for name, time in alternate(runs, rounds).items()}
    events = sum(-(-len(store.blocks) // event_blocks) for store in fleet.stores)
    return {
        "events": name,
        "block_size": block_size,
        "blocks": fleet.stored,
        "blocks_per_event": round(fleet.stored / events, 1),
        "ns_per_block": {name: round(time, 1) for name, time in per_block.items()},
        "apply_over_decode": round(per_block["apply"] / per_block["decode"], 3),
        "dynamo_over_apply": over_apply(per_block, "dynamo", "dynamo_hashing"),
        "dynamo_tree_alone_over_apply": over_apply(per_block, "dynamo"),
    }


def over_apply(per_block: dict[str, float], *parts: str) -> float | None:
    """What these take together, as a multiple; None where they were not measured."""
    if not all(part in per_block for part in parts):
        return None
    return round(sum(per_block[part] for part in parts) / per_block["apply"], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = [
        measure(name, block_size, options.blocks // share, options.rounds)
        for block_size, share in ((16, 1), (64, 4))
        for name in EVENT_BLOCKS
    ]
    save("apply", __doc__ or "", rows, msgspec=msgspec.__version__, dynamo=dynamo.VERSION)


if __name__ == "__main__":
    main()
