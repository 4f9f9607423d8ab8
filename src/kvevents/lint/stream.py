"""The batches of one source, checked as they come."""

from collections.abc import Iterator

import msgspec

from kvevents._core.lint import Linted, Linter
from kvevents.errors import WireError
from kvevents.hashing import SchemeReport
from kvevents.hashing.identify import UNCONFIRMED
from kvevents.lint.codes import BY_KIND, CODES, Code
from kvevents.lint.numbers import Numbers, Turn
from kvevents.lint.report import Finding, Place, StreamFacts
from kvevents.lint.sample import Sample, Saving
from kvevents.transport import State
from kvevents.transport.capture import CapturedBatch, CapturedRefusal, CapturedState, CaptureSource

_STORM_CLEARS = 3
_STORM_S = 60.0
_AGAIN_BLOCKS = 32
"""Blocks stored again in a row, with none that is new among them, from which on a restart is suspected."""

_SETTLED_BLOCKS = 4_096
"""Blocks stored without any removal from which on that is worth a word."""

_MERGED_SHARE = 0.2
_MERGED_EVENTS = 64


class Clues(msgspec.Struct, frozen=True):
    """What whoever asks knows of the engine.

    Attributes:
        capacity_blocks: blocks that its GPU cache can hold.
        seeds: values of PYTHONHASHSEED to be tried.
        salts: salts that are not on the wire.
        has_hashes: whether hashes and tokens are the engine's own.
    """

    capacity_blocks: int | None = None
    seeds: tuple[str, ...] = ()
    salts: tuple[str, ...] = ()
    has_hashes: bool = True


class _Noted(msgspec.Struct):
    code: Code
    first: Place
    detail: str
    count: int = 0
    blocks: int = 0


class Stream:
    """One stream: its numbers, its blocks, its first events."""

    def __init__(self, source: CaptureSource, clues: Clues) -> None:
        self._source = source
        self._clues = clues
        self._core = Linter(block_size=source.block_size)
        self._numbers = Numbers()
        self._sample = Sample()
        self._noted: dict[str, _Noted] = {}
        self._batches = self._events = self._stored = self._removed = self._clears = self._most_held = 0
        self._first_ts: float | None = None
        self._last_ts = 0.0
        self._clear_times: dict[int | None, list[float]] = {}
        self._again = 0
        self._named_rank: int | None = None

    def batch(self, record: CapturedBatch) -> None:
        """Check the next batch."""
        place = Place(self._batches, record.sequence, record.time)
        self._batches += 1
        if record.sequence is not None and not self._in_turn(record, place):
            return
        try:
            linted = self._core.check(record.payload)
        except WireError as error:
            self._note("KV201", place, f"at byte {error.offset}: {error.reason}")
            self._core.miss()
            return
        self._named_rank = linted.dp_rank
        self._events += linted.events
        self._stored += linted.stored
        self._removed += linted.removed
        self._most_held = max(self._most_held, self._core.held)
        self._first_ts = linted.ts if self._first_ts is None else self._first_ts
        self._last_ts = linted.ts
        again = 0
        for found in linted.findings:
            if found.kind == "cleared":
                self._cleared(found.events, linted, place)
                continue
            again += found.blocks if found.kind == "stored-again" else 0
            block = None if found.block is None else f"{found.block:016x}"
            where = Place(place.batch, place.sequence, place.time, found.offset, block)
            self._note(BY_KIND[found.kind].code, where, found.detail or "", count=found.events, blocks=found.blocks)
        self._watch_restarts(linted.stored, again, place)
        self._sample.add(record.payload, linted.stored + linted.removed)

    def refusal(self, record: CapturedRefusal) -> None:
        """A batch that could not be read came here."""
        place = Place(self._batches, record.sequence, record.time)
        self._note("KV201", place, f"at byte {record.offset}: {record.reason}")
        self._core.miss()

    def reset(self) -> None:
        """The source began anew here."""
        self._core.begin()
        self._numbers.begin()

    def state(self, record: CapturedState) -> None:
        """Whoever followed the stream says how complete it is."""
        if record.state == State.DEGRADED:
            self._note("KV108", Place(self._batches, None, record.time), record.detail or record.code)
            self._core.miss()

    def report(self) -> tuple[StreamFacts, list[Finding]]:
        """What the stream is, and all that was found in it; it can go on after that."""
        recognised = self._sample.recognised()
        saving = None if recognised is None else self._sample.saving(recognised.dialect)
        scheme = self._sample.scheme(self._clues.seeds, self._clues.salts) if self._clues.has_hashes else None
        facts = StreamFacts(
            worker=self._source.worker_id,
            dp_rank=self._source.dp_rank,
            batches=self._batches,
            events=self._events,
            stored_blocks=self._stored,
            removed_blocks=self._removed,
            clears=self._clears,
            held_blocks=self._core.held,
            most_held_blocks=self._most_held,
            seconds=0.0 if self._first_ts is None else self._last_ts - self._first_ts,
            dialect=None if recognised is None else recognised.dialect,
            engine=None if recognised is None else recognised.engine,
            scheme=None if scheme is None else scheme.scheme,
            hash_seed=None if scheme is None else scheme.hash_seed,
            saving=None if saving is None else saving.share,
            forgotten_blocks=self._core.forgotten,
        )
        whole = (*self._judge_amounts(), *self._judge_saving(saving), *self._judge_hashes(scheme))
        end = Place(max(0, self._batches - 1))
        noted = [*self._noted.values(), *(_Noted(CODES[code], end, detail, 1) for code, detail in whole)]
        return facts, [self._finding(one) for one in noted]

    def _finding(self, noted: _Noted) -> Finding:
        return Finding(
            code=noted.code.code,
            severity=noted.code.severity,
            worker=self._source.worker_id,
            dp_rank=self._source.dp_rank,
            title=noted.code.title,
            detail=noted.detail,
            count=noted.count,
            blocks=noted.blocks,
            first=noted.first,
            remedy=noted.code.remedy,
        )

    def _in_turn(self, record: CapturedBatch, place: Place) -> bool:
        """Note what is wrong with a batch's number; whether the batch counts."""
        assert record.sequence is not None
        last = self._numbers.last
        turn, missing = self._numbers.take(record.sequence, record.payload)
        if turn is Turn.AGAIN:
            self._note("KV104", place, f"number {record.sequence}")
            return False
        if turn is Turn.FIRST and record.sequence > 0:
            if self._batches == 1:
                self._note("KV105", place, f"the first number is {record.sequence}")
            self._core.miss()
        elif turn is Turn.GAP:
            self._note("KV101", place, f"{missing} between {last} and {record.sequence}", count=missing)
            self._core.miss()
        elif turn is Turn.ANEW:
            self._note("KV102", place, f"{record.sequence} after {last}")
            self._core.begin()
            if record.sequence > 0:
                self._core.miss()
        return True

    def _cleared(self, clears: int, linted: Linted, place: Place) -> None:
        self._clears += clears
        ts = linted.ts
        before = [time for time in self._clear_times.get(linted.dp_rank, ()) if ts - time < _STORM_S]
        times = self._clear_times[linted.dp_rank] = before[-_STORM_CLEARS:] + [ts] * clears
        if len(times) >= _STORM_CLEARS and ts > 0:
            self._note("KV107", place, f"{len(times)} within {ts - times[0]:.0f} s")

    def _watch_restarts(self, stored: int, again: int, place: Place) -> None:
        if not stored:
            return
        if again < stored:
            self._again = 0
            return
        before = self._again
        self._again += again
        if before < _AGAIN_BLOCKS <= self._again:
            self._note(
                "KV103", place, f"{self._again} blocks that are held stored again, and no other", blocks=self._again
            )

    def _judge_amounts(self) -> Iterator[tuple[str, str]]:
        capacity = self._clues.capacity_blocks
        if capacity is not None and self._most_held > capacity:
            yield "KV309", f"{self._most_held:,} blocks on the GPU at once, and room for {capacity:,}"
        elif capacity is None and not self._removed and not self._clears and self._stored >= _SETTLED_BLOCKS:
            yield "KV310", f"{self._stored:,} blocks stored"
        named, own = self._named_rank, self._source.dp_rank
        if self._core.ranks > 1:
            yield "KV106", f"{self._core.ranks} ranks"
        elif named is not None and own is not None and named != own:
            yield "KV109", f"rank {named} on the socket of rank {own}"

    def _judge_saving(self, saving: Saving | None) -> Iterator[tuple[str, str]]:
        if saving is not None and saving.share >= _MERGED_SHARE and saving.events >= _MERGED_EVENTS:
            events = f"{saving.events:,} events become {saving.merged_events:,}"
            yield "KV501", f"merging would save {saving.share:.0%} of the bytes: {events}"

    def _judge_hashes(self, scheme: SchemeReport | None) -> Iterator[tuple[str, str]]:
        if scheme is None:
            if self._stored:
                yield "KV604", "the capture is pseudonymous"
        elif scheme.scheme is None:
            if self._stored:
                yield ("KV601" if scheme.unchecked.get(UNCONFIRMED) else "KV604"), scheme.reason
        else:
            if scheme.contradicted:
                yield "KV602", scheme.reason
            if scheme.hash_seed is None and scheme.scheme.startswith("vllm"):
                yield "KV603", scheme.reason

    def _note(self, code: str, place: Place, detail: str, *, count: int = 1, blocks: int = 0) -> None:
        noted = self._noted.get(code)
        if noted is None:
            noted = self._noted[code] = _Noted(CODES[code], place, detail)
        noted.count += count
        noted.blocks += blocks
