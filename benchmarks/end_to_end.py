"""From a publisher's socket to visible in a query: what does it cost to follow a fleet, against Dynamo's indexer?

    python -m benchmarks.end_to_end [--blocks 500000] [--rounds 3]

One process publishes the events of eight workers, a socket each, as fast as it can. A follower in a process of its own
takes them in and is asked every 20 ms for a prompt whose only block each worker stores last; the clock stops when all
eight have it. Ours is `Subscriber` and `PrefixIndex`, asked over a pipe; Dynamo's is its standalone indexer with four
threads, asked over HTTP; the floor receives the same messages in Python and throws them away. All get the same bytes
from the same publisher; they take turns, each round in new processes; medians of the rounds. Processor time is that of
the follower's process alone, all its threads. After each round 64 prompts are asked for and compared with the truth.
"""

import argparse
import contextlib
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks import dynamo, loopback
from benchmarks.dynamo_indexer import DynamoIndexer
from benchmarks.fleet_publisher import FleetPublisher, Messages
from benchmarks.followers import Floor, Follower, Ours, wait_for
from benchmarks.peers import Unavailable
from benchmarks.results import save
from benchmarks.workload import Fleet, batches, generate, payload
from kvevents.events import BlockStored


class Shape(NamedTuple):
    """How stores are cut into events and events into messages, with our goal against Dynamo by block size.

    Attributes:
        name: in words.
        event_blocks: of an event, at most.
        message_blocks: at which a message is closed.
        share: of the blocks that are asked for: the dear ones get fewer.
        goals: how many times more blocks per processor second.
    """

    name: str
    event_blocks: int
    message_blocks: int
    share: float
    goals: dict[int, float]


SHAPES = (
    Shape("coalesced", 96, 64, 1.0, {16: 3.0, 64: 5.0}),
    Shape("1 block an event, 64 events a message", 1, 64, 0.5, {16: 4.0, 64: 4.0}),
    Shape("1 event a message", 1, 1, 0.25, {16: 1.5, 64: 1.5}),
)
BLOCK_SIZES = {16: 1.0, 64: 0.4}
"""With the share of the blocks."""
PROMPTS = 64
EVERY_S = 0.02
PATIENCE_S = 300.0


class Round(NamedTuple):
    """One follower, once."""

    wall_s: float
    processor_s: float


def last_prompt(block_size: int) -> list[int]:
    """One block that no other prompt begins with."""
    return list(range(1 << 20, (1 << 20) + block_size))


def run(
    follower: Follower, publisher: FleetPublisher, fleet: Fleet, truth: Sequence[tuple[Any, dict[int, int]]]
) -> Round:
    with contextlib.closing(follower):
        follower.follow(publisher.open())
        before = follower.processor_seconds()
        started = publisher.send()
        prompt = last_prompt(fleet.block_size)
        visible = wait_for(follower, prompt, fleet.workers, every_s=EVERY_S, patience_s=PATIENCE_S)
        used = follower.processor_seconds() - before
        if not isinstance(follower, Floor):
            check(follower, truth)
        return Round(visible - started, used)


def check(follower: Follower, truth: Sequence[tuple[Any, dict[int, int]]]) -> None:
    """Every answer is right, and nothing was lost on the way."""
    name = type(follower).__name__
    for tokens, depths in truth:
        if (answer := follower.depths(tokens)) != depths:
            raise AssertionError(f"{name}: a prompt is held as {depths}, the answer is {answer}")
    if isinstance(follower, Ours) and (faults := follower.faults()):
        raise AssertionError(f"{name}: not every source is live: {faults}")


def messages(fleet: Fleet, shape: Shape) -> Messages:
    """What the fleet says, and last of each worker the prompt that is asked for."""
    made = list(batches(fleet, shape.event_blocks, shape.message_blocks))
    for worker in range(fleet.workers):
        last = BlockStored([1 + worker], None, last_prompt(fleet.block_size), fleet.block_size, medium="GPU")
        made.append((worker, payload([last])))
    return made


def measure(shape: Shape, block_size: int, blocks: int, rounds: int) -> dict[str, Any]:
    fleet = generate(blocks, block_size)
    made = messages(fleet, shape)
    truth = fleet.depths(PROMPTS)
    contestants: dict[str, Callable[[], Follower]] = {
        "ours": lambda: Ours(block_size),
        "dynamo": lambda: DynamoIndexer(block_size),
        "floor": lambda: Floor(len(made)),
    }
    row: dict[str, Any] = {
        "shape": shape.name,
        "block_size": block_size,
        "blocks": fleet.stored,
        "messages": len(made),
        "megabytes": round(sum(len(data) for _, data in made) / 1e6, 1),
        "goal": shape.goals[block_size],
    }
    taken: dict[str, list[Round]] = {name: [] for name in contestants}
    with contextlib.closing(FleetPublisher(fleet.workers, made)) as publisher:
        for number in range(rounds):
            for name, contestant in contestants.items():
                try:
                    one = run(contestant(), publisher, fleet, truth)
                except Unavailable as reason:
                    row[name] = f"skipped: {reason}"
                    continue
                taken[name].append(one)
                print(f"  {shape.name}, block {block_size}, {number + 1}/{rounds}: {name} {one}", file=sys.stderr)
    used = {name: statistics.median(one.processor_s for one in of) for name, of in taken.items() if of}
    wall = {name: statistics.median(one.wall_s for one in of) for name, of in taken.items() if of}
    row["blocks_per_processor_second"] = {name: round(fleet.stored / seconds) for name, seconds in used.items()}
    row["blocks_per_second"] = {name: round(fleet.stored / seconds) for name, seconds in wall.items()}
    if "dynamo" in used:
        row["ours_over_dynamo"] = round(used["dynamo"] / used["ours"], 2)
        row["ours_over_dynamo, wall"] = round(wall["dynamo"] / wall["ours"], 2)
    row["ours_over_floor"] = round(used["ours"] / used["floor"], 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with contextlib.suppress(Unavailable):  # each round says why
        dynamo.install_indexer()
    loopback.enter()
    rows = [
        measure(shape, block_size, int(options.blocks * shape.share * share), options.rounds)
        for shape in SHAPES
        for block_size, share in BLOCK_SIZES.items()
    ]
    save("end_to_end", __doc__ or "", rows, dynamo=dynamo.VERSION)


if __name__ == "__main__":
    main()
