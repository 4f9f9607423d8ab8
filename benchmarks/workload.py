"""A seeded fleet: what workers announce while sessions over shared prompts come, grow, move and go.

Prompts begin with one of a few system prompts or, rarely, with a long document; which one is drawn from a Zipf
distribution. A session adds a turn of tens of blocks at a time, mostly on the worker that had it before, so that many
blocks are held by one worker and the popular ones by all.
"""

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from kvevents.events import BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.wire import encode_batch

SYSTEM_PROMPTS = 64
DOCUMENTS = 24
SESSIONS = 256
DOCUMENT_SHARE = 0.03
MOVE_SHARE = 0.10
TURN_BLOCKS = 64
VOCABULARY_BITS = 17
BATCH_BLOCKS = 256
"""Blocks at which a batch is closed."""


@dataclass
class Store:
    """Consecutive blocks of one prompt that a worker did not hold before."""

    worker: int
    parent: int | None
    blocks: list[int]


@dataclass
class Fleet:
    """Blocks are numbered; `hashes` and `tokens` say what they are."""

    block_size: int
    workers: int
    hashes: "array[int]" = field(default_factory=lambda: array("q"))
    tokens: "array[int]" = field(default_factory=lambda: array("I"))
    stores: list[Store] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    """Prompts that have been stored whole by the worker that had them last."""

    @property
    def stored(self) -> int:
        """Blocks that the stores name."""
        return sum(len(store.blocks) for store in self.stores)

    def ids(self, blocks: Sequence[int]) -> "array[int]":
        """The token ids of a prompt, as the 32-bit signed integers that tokenizers give."""
        size = self.block_size
        ids = array("i")
        for block in blocks:
            ids.frombytes(memoryview(self.tokens)[block * size : (block + 1) * size].cast("B"))
        return ids

    def event(self, parent: int | None, blocks: Sequence[int]) -> BlockStored:
        """A store as an engine announces it."""
        above = None if parent is None else self.hashes[parent]
        hashes = [self.hashes[block] for block in blocks]
        return BlockStored(hashes, above, self.ids(blocks).tolist(), self.block_size, medium="GPU")

    def removals(self, worker: int, batch_blocks: int = BATCH_BLOCKS) -> Iterator[bytes]:
        """Payloads that take away all a worker stored, the latest first, as eviction does."""
        blocks = [block for store in self.stores if store.worker == worker for block in store.blocks]
        hashes = [self.hashes[block] for block in reversed(blocks)]
        for start in range(0, len(hashes), batch_blocks):
            yield payload([BlockRemoved(hashes[start : start + batch_blocks], medium="GPU")])

    def depths(self, count: int) -> list[tuple["array[int]", dict[int, int]]]:
        """Token ids of so many prompts, with the leading blocks of each that every worker holds, if any."""
        held: list[set[int]] = [set() for _ in range(self.workers)]
        for store in self.stores:
            held[store.worker].update(store.blocks)
        chosen = random.Random(8).choices(self.prompts, k=count)
        return [(self.ids(prompt), _depths(held, prompt)) for prompt in chosen]

    def longest(self, count: int, blocks: int) -> list["array[int]"]:
        """Token ids of prompts of exactly so many blocks, each held whole by some worker."""
        long_enough = [prompt for prompt in self.prompts if len(prompt) >= blocks]
        chosen = random.Random(7).choices(long_enough, k=count)
        return [self.ids(prompt[:blocks]) for prompt in chosen]


def random_ids(draw: random.Random, count: int) -> "array[int]":
    """Token ids, all at once."""
    mask = int.from_bytes(((1 << VOCABULARY_BITS) - 1).to_bytes(4, "little") * count, "little")
    return array("I", (draw.getrandbits(32 * count) & mask).to_bytes(4 * count, "little"))


def random_hashes(draw: random.Random, count: int) -> "array[int]":
    """Engine hashes, all at once."""
    return array("q", draw.randbytes(8 * count))


def _depths(held: Sequence[set[int]], prompt: Sequence[int]) -> dict[int, int]:
    depths = {
        worker: next((depth for depth, block in enumerate(prompt) if block not in blocks), len(prompt))
        for worker, blocks in enumerate(held)
    }
    return {worker: depth for worker, depth in depths.items() if depth}


def payload(events: Sequence[KVCacheEvent]) -> bytes:
    """A batch on the wire."""
    return encode_batch(KVEventBatch(ts=0.0, events=[*events], attn_dp_rank=0))


def batches(fleet: Fleet, event_blocks: int = 96, batch_blocks: int = BATCH_BLOCKS) -> Iterator[tuple[int, bytes]]:
    """(worker, payload) in time order: events of at most so many blocks, a batch closed at so many."""
    open_events: dict[int, list[KVCacheEvent]] = {}
    sizes = dict.fromkeys(range(fleet.workers), 0)
    for store in fleet.stores:
        events = open_events.setdefault(store.worker, [])
        parent = store.parent
        for start in range(0, len(store.blocks), event_blocks):
            blocks = store.blocks[start : start + event_blocks]
            events.append(fleet.event(parent, blocks))
            parent = blocks[-1]
            sizes[store.worker] += len(blocks)
            if sizes[store.worker] >= batch_blocks:
                yield store.worker, payload(open_events.pop(store.worker))
                events = open_events.setdefault(store.worker, [])
                sizes[store.worker] = 0
    for worker, events in open_events.items():
        if events:
            yield worker, payload(events)


class _Session:
    def __init__(self, prompt: list[int], worker: int, turns: int) -> None:
        self.prompt = prompt
        self.worker = worker
        self.turns = turns
        self.has_begun = False


class _Generator:
    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.random = random.Random(seed)
        lengths = [self.random.choice([8, 16, 32, 64, 128]) for _ in range(SYSTEM_PROMPTS)]
        lengths += [self.random.randrange(2048, 2600) for _ in range(DOCUMENTS)]
        self.shared = [self.blocks(length) for length in lengths]
        self.homes = [self.random.choices(range(fleet.workers), k=2) for _ in self.shared]
        self.held = [bytearray() for _ in range(fleet.workers)]

    def blocks(self, count: int) -> list[int]:
        """New blocks with random tokens."""
        fleet, draw = self.fleet, self.random
        first = len(fleet.hashes)
        fleet.tokens.extend(random_ids(draw, count * fleet.block_size))
        fleet.hashes.extend(random_hashes(draw, count))
        return list(range(first, first + count))

    def session(self) -> _Session:
        draw = self.random
        if draw.random() < DOCUMENT_SHARE:
            number = SYSTEM_PROMPTS + _zipf(draw, DOCUMENTS)
        else:
            number = _zipf(draw, SYSTEM_PROMPTS)
        worker = draw.choice(self.homes[number]) if draw.random() < 0.5 else draw.randrange(self.fleet.workers)
        return _Session(self.shared[number], worker, 1 + int(draw.expovariate(0.29)))

    def turn(self, session: _Session) -> int:
        """One turn more; how many blocks its worker had to store."""
        draw = self.random
        length = min(512, max(2, int(draw.lognormvariate(0.0, 0.5) * TURN_BLOCKS)))
        session.prompt = session.prompt + self.blocks(length)
        session.turns -= 1
        session.has_begun = True
        if draw.random() < MOVE_SHARE:
            session.worker = draw.randrange(self.fleet.workers)
        held = self.held[session.worker]
        held.extend(bytes(len(self.fleet.hashes) - len(held)))
        known = len(session.prompt)
        while known > 0 and not held[session.prompt[known - 1]]:
            known -= 1
        new = session.prompt[known:]
        for block in new:
            held[block] = 1
        parent = session.prompt[known - 1] if known else None
        self.fleet.stores.append(Store(session.worker, parent, new))
        return len(new)


def _zipf(draw: random.Random, count: int) -> int:
    weights = list(accumulate(1 / rank**1.1 for rank in range(1, count + 1)))
    return draw.choices(range(count), cum_weights=weights)[0]


def generate(blocks: int = 1_000_000, block_size: int = 16, workers: int = 8, seed: int = 1) -> Fleet:
    """A fleet that stores at least so many blocks."""
    fleet = Fleet(block_size, workers)
    generator = _Generator(fleet, seed)
    sessions = [generator.session() for _ in range(SESSIONS)]
    stored = 0
    while stored < blocks:
        place = generator.random.randrange(len(sessions))
        session = sessions[place]
        stored += generator.turn(session)
        if session.turns <= 0:
            fleet.prompts.append(session.prompt)
            sessions[place] = generator.session()
    fleet.prompts += [session.prompt for session in sessions if session.has_begun]
    return fleet
