"""Writers and readers at once over random streams: every answer is one that was true, none older than the one before.

Each worker has a writer of its own, so the model knows what its sources say after each event, whatever the others do.
"""

from collections import defaultdict
from functools import partial
from typing import Any

from hypothesis import HealthCheck, Phase, find, given, settings
from msgspec.structs import replace

from index_and_model import Rank, answers, expected, holdings, new_source, register
from index_deliveries import Delivery, Run, runs
from kvevents.events import BlockStored, KVCacheEvent, KVEventBatch
from kvevents.index import PrefixIndex
from set_model import Source
from threads import run as run_at_once

ROUNDS = 3
"""Times that each writer goes through its deliveries."""

Key = tuple[str, Rank]
"""Worker and rank."""


class History:
    """What each source says of each path, event by event; and what it holds after each of its batches."""

    def __init__(self, run: Run) -> None:
        self.stream = run.stream
        self.sources: dict[Key, Source] = {}
        self.said: dict[Key, list[list[Any]]] = {}
        self.held: dict[Key, list[dict[str, set[int]]]] = {}
        self.batches: dict[int, list[tuple[Delivery, int]]] = defaultdict(list)
        for delivery in [delivery for delivery in run.deliveries if delivery.fate != "broken"] * ROUNDS:
            self.batches[delivery.worker].append((delivery, self.follow(delivery)))

    def follow(self, delivery: Delivery) -> int:
        """One more batch of a source; its sequence."""
        key = (str(delivery.worker), delivery.rank)
        source = self.sources.setdefault(key, new_source(self.stream.engines[delivery.worker]))
        said = self.said.setdefault(key, [[None] * len(self.stream.paths)])
        for event in delivery.events:
            source.apply(event)
            said.append([expected(source, self.stream, path) for path in self.stream.paths])
        held = self.held.setdefault(key, [])
        held.append(holdings(source))
        return len(held) - 1

    def index(self) -> PrefixIndex:
        index = PrefixIndex(self.stream.block_size)
        for worker, engine in enumerate(self.stream.engines):
            register(index, worker, engine)
        return index

    def check_snapshot(self, snapshot: bytes) -> None:
        """Every source is as it was after the batch that the snapshot says was its last."""
        index = self.index()
        index.restore(snapshot)
        index.check_integrity()
        for source in index.stats().sources:
            assert source.last_seq is not None
            held = index.holdings(source.worker)[source.dp_rank]
            assert held == self.held[source.worker, source.dp_rank][source.last_seq]


class Reader:
    """Someone who asks again and again, and never hears what cannot be."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.moments: dict[Key, int] = defaultdict(int)
        """The earliest moment that the last answer about a source fits."""

    def look(self, index: PrefixIndex) -> None:
        stream = self.history.stream
        for number, path in enumerate(stream.paths):
            found = answers(index, stream, path)
            assert found.keys() <= self.history.said.keys()
            for key, said in self.history.said.items():
                answer, moment = found.get(key), self.moments[key]
                fits = (at for at in range(moment, len(said)) if said[at][number] == answer)
                later = next(fits, None)
                assert later is not None, f"{key} said {answer} after {said[moment]}"
                self.moments[key] = later


class Traffic:
    """An index with a writer for each worker, two readers, and someone who takes snapshots."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.index = history.index()
        self.snapshots: list[bytes] = []
        self.writers_left = set(history.batches)

    def run(self) -> None:
        writers = [partial(self.write, worker) for worker in self.history.batches]
        run_at_once(*writers, self.read, self.read, self.keep)

    def write(self, worker: int) -> None:
        try:
            for delivery, seq in self.history.batches[worker]:
                report = self.index.apply(str(worker), delivery.data, seq=seq, dp_rank=delivery.beside)
                assert report.ignored is None
        finally:
            self.writers_left.discard(worker)

    def read(self) -> None:
        reader = Reader(self.history)
        while self.writers_left:
            reader.look(self.index)

    def keep(self) -> None:
        while self.writers_left and len(self.snapshots) < 50:
            self.snapshots.append(self.index.snapshot())


@given(runs())
def test_every_answer_is_one_that_was_true(run: Run) -> None:
    history = History(run)
    traffic = Traffic(history)
    traffic.run()
    traffic.index.check_integrity()
    for snapshot in [*traffic.snapshots, traffic.index.snapshot()]:
        history.check_snapshot(snapshot)
    for number, path in enumerate(run.stream.paths):
        found = answers(traffic.index, run.stream, path)
        assert {key: found.get(key) for key in history.said} == {
            key: said[-1][number] for key, said in history.said.items()
        }


def notices(run: Run, *, torn: bool) -> bool:
    """Whether a reader who asks after each event notices something; told stores block by block, if `torn`."""
    history = History(run)
    index, reader = history.index(), Reader(history)
    try:
        for batches in history.batches.values():
            for delivery, _ in batches:
                for event in delivery.events:
                    for piece in torn_apart(event) if torn else [event]:
                        index.apply(str(delivery.worker), KVEventBatch(0.0, [piece], delivery.rank))
                        reader.look(index)
    except AssertionError:
        return True
    return False


def torn_apart(event: KVCacheEvent) -> list[KVCacheEvent]:
    """A store as stores of one block each; as it is where its blocks and tokens do not match."""
    if not isinstance(event, BlockStored) or len(event.token_ids) != event.block_size * len(event.block_hashes):
        return [event]
    parents = [event.parent_block_hash, *event.block_hashes]
    return [
        replace(
            event,
            block_hashes=[block],
            parent_block_hash=parents[at],
            token_ids=event.token_ids[at * event.block_size : (at + 1) * event.block_size],
            extra_keys=event.extra_keys and event.extra_keys[at : at + 1],
        )
        for at, block in enumerate(event.block_hashes)
    ]


def test_a_reader_notices_events_that_are_not_applied_whole() -> None:
    budget = settings(
        max_examples=500, derandomize=True, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    find(runs(), lambda run: notices(run, torn=True), settings=budget)


@given(runs())
def test_a_reader_notices_nothing_where_events_are_applied_whole(run: Run) -> None:
    assert not notices(run, torn=False)
