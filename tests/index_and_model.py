"""The index and the plain model of it, told alike and asked alike."""

from collections import Counter
from typing import Any

import pytest

import set_model
from index_deliveries import Delivery
from index_streams import DECLARED, SPACES, Engine, Path, Stream
from kvevents.errors import WireError
from kvevents.events import BlockStored
from kvevents.index import ApplyReport, GroupSpec, PrefixIndex, SourceStats, WorkerHandle
from set_model import TIERS, Source, tier_of

Rank = int | None
Answers = dict[tuple[str, Rank], Any]
"""What a match says, by worker and rank: total, tiers, fastest, usable, state."""

COUNTERS = ("events", "stored", "removed", "cleared", "removal_misses", "refused", "duplicates")


class Both:
    """Every delivery goes to both, and what the index reports of it is what the model expects."""

    def __init__(self, stream: Stream, **settings: Any) -> None:
        self.stream = stream
        self.index = PrefixIndex(stream.block_size, **settings)
        self.model: dict[tuple[int, Rank], Source] = {}
        self.ignored = 0
        self.handles = [register(self.index, worker, engine) for worker, engine in enumerate(stream.engines)]

    def deliver(self, delivery: Delivery) -> None:
        worker, rank = delivery.worker, delivery.rank
        match delivery.fate:
            case "lost":
                return
            case "broken":
                before = self.index.snapshot()
                with pytest.raises(WireError):
                    self.tell(delivery)
                assert self.index.snapshot() == before, "bytes that are not a batch change nothing"
                return
            case "cleared":
                self.clear(worker, rank)
            case "removed":
                self.remove(delivery)
        last = self.source(worker, rank).last_seq
        if last is not None and delivery.seq is not None and delivery.seq <= last:
            assert self.tell(delivery).ignored == "duplicate"
            self.source(worker, rank).counts["duplicates"] += 1
        else:
            self.told(delivery, self.tell(delivery))

    def tell(self, delivery: Delivery) -> ApplyReport:
        worker = self.handles[delivery.worker] if delivery.seq is None else str(delivery.worker)
        return self.index.apply(worker, delivery.data, seq=delivery.seq, dp_rank=delivery.beside)

    def told(self, delivery: Delivery, report: ApplyReport) -> None:
        """The model hears the same, and expects the report."""
        source = self.source(delivery.worker, delivery.rank)
        before = Counter(source.counts)
        for event in delivery.events:
            source.apply(event)
        stores = [event for event in delivery.events if isinstance(event, BlockStored)]
        unknown = [tier_of(event.medium, event.locality) for event in stores].count(set_model.UNKNOWN)
        skipped = [*delivery.skipped, *["unknown-tier"] * unknown]
        source.skipped.update(skipped)
        source.last_seq = source.last_seq if delivery.seq is None else delivery.seq
        assert [event.code for event in report.skipped] == skipped
        assert (report.dp_rank, report.ignored, report.dropped) == (delivery.rank, None, 0)
        for name in ("events", "stored", "removed", "cleared", "removal_misses"):
            assert getattr(report, name) == source.counts[name] - before[name], name
        assert (report.error is not None) == (source.counts["refused"] > before["refused"])
        assert report.pending + report.parked == source.waiting()

    def clear(self, worker: int, rank: Rank) -> None:
        """None clears every rank."""
        self.index.clear_worker(str(worker), rank)
        for (owner, number), source in self.model.items():
            if owner == worker and rank in {None, number}:
                source.clear()
                source.last_seq = None

    def remove(self, delivery: Delivery) -> None:
        """Remove a worker, show that nothing brings it back but its being added anew, and add it anew."""
        worker = delivery.worker
        assert self.index.remove_worker(str(worker))
        assert self.tell(delivery).ignored == "worker-removed"
        assert self.index.holdings(str(worker)) == {}
        old = self.handles[worker]
        self.handles[worker] = register(self.index, worker, self.stream.engines[worker])
        assert self.index.apply(old, delivery.data).ignored == "worker-removed"
        self.ignored += 2
        self.model = {key: source for key, source in self.model.items() if key[0] != worker}

    def adopt(self, index: PrefixIndex) -> None:
        """Go on with an index that is to hold the same; figures of what happened stay with the old one."""
        self.index = index
        self.handles = [register(index, worker, engine) for worker, engine in enumerate(self.stream.engines)]

    def source(self, worker: int, rank: Rank) -> Source:
        if (worker, rank) not in self.model:
            self.model[worker, rank] = new_source(self.stream.engines[worker])
        return self.model[worker, rank]

    def check(self) -> None:
        self.index.check_integrity()
        for worker in range(len(self.stream.engines)):
            assert self.index.holdings(str(worker)) == self.held(worker)
        self.check_answers()

    def check_answers(self) -> None:
        for path in self.stream.paths:
            assert answers(self.index, self.stream, path) == self.expected(path)

    def check_figures(self) -> None:
        stats = self.index.stats()
        assert stats.workers == [str(worker) for worker in range(len(self.stream.engines))]
        assert stats.ignored_batches == self.ignored
        assert stats.memory_bytes > 0
        contents: set[Any] = set()
        for source in self.model.values():
            contents |= {(source.geometry, source.content(block)) for block in source.held.copies}
        assert stats.blocks == len({content for content in contents if content[1] is not None})
        figures = {(int(source.worker), source.dp_rank): source for source in stats.sources}
        assert figures.keys() == self.model.keys()
        for key, source in self.model.items():
            check_source(figures[key], source)

    def held(self, worker: int) -> dict[Rank, dict[str, set[int]]]:
        return {rank: holdings(source) for (owner, rank), source in self.model.items() if owner == worker}

    def expected(self, path: Path) -> Answers:
        found = {}
        for (worker, rank), source in self.model.items():
            answer = expected(source, self.stream, path)
            if answer is not None:
                found[str(worker), rank] = answer
        return found


def new_source(engine: Engine) -> Source:
    kinds: dict[int, tuple[str, int | None]] = dict(DECLARED) if engine.declared else {}
    return Source(block_size=engine.registered, counted=engine.counted, kinds=kinds)


def holdings(source: Source) -> dict[str, set[int]]:
    return {name: source.held.blocks(tier, source.full_groups()) for tier, name in enumerate(TIERS)}


def expected(source: Source, stream: Stream, path: Path) -> Any:
    """What the index has to say of a source; None if nothing."""
    match = set_model.match(source, stream.block_size, prompt(stream, path), *asked(stream, path))
    if match is None or match.total == 0:
        return None
    return (*match, "degraded" if source.error else "live")


def check_source(figures: SourceStats, source: Source) -> None:
    size, bigram = source.geometry or (None, False)
    assert (figures.block_size, figures.bigram) == (size, bigram)
    assert {name: len(blocks) for name, blocks in holdings(source).items()} == figures.tiers
    above = {link.parent for link in source.links.values() if link.parent is not None}
    assert figures.blocks == len(source.held.copies.keys() | source.links.keys() | above)
    assert figures.pending + figures.parked == source.waiting()
    assert (figures.state, figures.error is not None) == (("degraded", True) if source.error else ("live", False))
    assert (figures.last_seq, figures.dropped) == (source.last_seq, 0)
    assert {name: getattr(figures, name) for name in COUNTERS} == {name: source.counts[name] for name in COUNTERS}
    assert figures.skipped == source.skipped


def register(index: PrefixIndex, worker: int, engine: Engine) -> WorkerHandle:
    groups = {number: GroupSpec(kind, window) for number, (kind, window) in DECLARED.items()}
    return index.add_worker(
        str(worker),
        block_size=engine.registered,
        residency="counted" if engine.counted else "set",
        groups=groups if engine.declared else None,
    )


def prompt(stream: Stream, path: Path) -> list[int]:
    """The path as its first worker's engine cuts it, and something after it."""
    engine = stream.engines[0]
    return [*path.tokens(engine.size, pairs=engine.pairs), 99]


def asked(stream: Stream, path: Path) -> tuple[Any, list[Any]]:
    """Namespace and images as the model takes them."""
    space = SPACES[path.space]
    images = path.images() if stream.images else []
    return (space.get("lora_name") or space.get("lora_id"), space.get("cache_salt")), images


def answers(index: PrefixIndex, stream: Stream, path: Path) -> Answers:
    _, images = asked(stream, path)
    matches = index.match(prompt(stream, path), **SPACES[path.space], extra_keys=[entry or None for entry in images])
    order = [(-match.usable, -match.fastest["GPU"], match.worker) for match in matches]
    assert order == sorted(order)
    return {
        (match.worker, match.dp_rank): (match.total, match.tiers, match.fastest, match.usable, match.state)
        for match in matches
    }
