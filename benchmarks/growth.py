"""Does an index grow dearer as it grows?

    python -m benchmarks.growth [--blocks 10000000]

Blocks: what applying 64 blocks more and matching 256 blocks cost in an index of 10,000 blocks and in one of many more.
Workers: what matching a prompt that 8 workers hold costs beside none and beside a thousand others.
"""

import argparse
import random
import time
from array import array
from typing import Any

from benchmarks.measure import latencies, percentile
from benchmarks.results import save
from benchmarks.workload import Fleet, batches, generate, payload, random_hashes, random_ids
from kvevents.events import BlockStored
from kvevents.index import PrefixIndex

SMALL = 10_000
BLOCK_SIZE = 16
PROMPT_BLOCKS = 256
EVENT_BLOCKS = 64
BATCH_EVENTS = 4
PROMPTS = 32
"""Prompts that are asked for, of either index: their ids alone fill much of a cache."""


def fill(index: PrefixIndex, blocks: int, draw: random.Random) -> "list[array[int]]":
    """Store prompts of `PROMPT_BLOCKS` blocks of random tokens; `PROMPTS` of them, from all over."""
    some = []
    for number in range(blocks // PROMPT_BLOCKS):
        ids = random_ids(draw, PROMPT_BLOCKS * BLOCK_SIZE)
        hashes = random_hashes(draw, PROMPT_BLOCKS).tolist()
        index.apply(
            f"worker-{number % 8}", payload([BlockStored(hashes, None, ids.tolist(), BLOCK_SIZE, medium="GPU")])
        )
        if number % (blocks // PROMPT_BLOCKS // PROMPTS) == 0:
            some.append(array("i", ids))
    return some[:PROMPTS]


def more(draw: random.Random, count: int) -> list[bytes]:
    """Batches of new blocks."""
    made = []
    for _ in range(count):
        events = []
        for _ in range(BATCH_EVENTS):
            ids = random_ids(draw, EVENT_BLOCKS * BLOCK_SIZE).tolist()
            hashes = random_hashes(draw, EVENT_BLOCKS).tolist()
            events.append(BlockStored(hashes, None, ids, BLOCK_SIZE, medium="GPU"))
        made.append(payload(events))
    return made


def cost_of_more(index: PrefixIndex, payloads: list[bytes]) -> float:
    """Nanoseconds a block."""
    start = time.process_time()
    for data in payloads:
        index.apply("worker-0", data)
    return (time.process_time() - start) / len(payloads) / BATCH_EVENTS / EVENT_BLOCKS * 1e9


def over_blocks(blocks: int) -> dict[str, Any]:
    draw = random.Random(3)
    small: list[float] = []
    for _ in range(30):
        little = PrefixIndex(BLOCK_SIZE)
        some = fill(little, SMALL, draw)
        small.append(cost_of_more(little, more(draw, 10)))
    match_small = percentile(latencies(little.match, some, 4000), 50)
    index = PrefixIndex(BLOCK_SIZE)
    some = fill(index, blocks, draw)
    large = sorted(cost_of_more(index, more(draw, 10)) for _ in range(30))
    match_large = percentile(latencies(index.match, some, 4000), 50)
    apply_small, apply_large = percentile(sorted(small), 50), percentile(large, 50)
    return {
        "blocks": [SMALL, blocks],
        "apply_ns_per_block": [round(apply_small, 1), round(apply_large, 1)],
        "apply_ratio": round(apply_large / apply_small, 2),
        "match_256_us": [round(match_small * 1e6, 2), round(match_large * 1e6, 2)],
        "match_ratio": round(match_large / match_small, 2),
    }


def held_by_all(fleet: Fleet, others: int) -> float:
    """Seconds that a match takes of a prompt that each of the fleet's workers holds, beside other workers."""
    index = PrefixIndex(fleet.block_size)
    prompts = [prompt[:PROMPT_BLOCKS] for prompt in fleet.prompts if len(prompt) >= PROMPT_BLOCKS][:64]
    for worker in range(fleet.workers):
        for prompt in prompts:
            index.apply(f"worker-{worker}", payload([fleet.event(None, prompt)]))
    rest = list(batches(generate(200_000, fleet.block_size, seed=9)))
    for number in range(others):
        index.apply(f"other-{number}", rest[number % len(rest)][1])
    return percentile(latencies(index.match, [fleet.ids(prompt) for prompt in prompts], 4000), 50)


def over_workers() -> dict[str, Any]:
    fleet = generate(100_000, BLOCK_SIZE)
    few, many = held_by_all(fleet, 0), held_by_all(fleet, 1016)
    figures = {"match_256_us": [round(few * 1e6, 2), round(many * 1e6, 2)], "match_ratio": round(many / few, 2)}
    return {"workers": [8, 1024], **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10_000_000)
    options = parser.parse_args()
    save("growth", __doc__ or "", [over_workers(), over_blocks(options.blocks)])


if __name__ == "__main__":
    main()
