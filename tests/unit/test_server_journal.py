"""Decisions are explained at a bounded rate, and what became of them is told."""

from collections.abc import Mapping
from typing import NamedTuple

from kvevents.routing import Decision, Score
from kvevents.server.dashboard import DashboardSettings
from kvevents.server.history import History
from kvevents.server.journal import MOST_CANDIDATES, Journal
from kvevents.server.usage import Usage


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Said(NamedTuple):
    scores: list[Score]
    reason: str = "it was the first"
    weights: Mapping[str, float] = {}

    @property
    def chosen(self) -> Score:
        return self.scores[0]


def decision(number: int, candidates: int = 2) -> Decision:
    scores = [Score(f"w{one}", 0, usable=3, cost=float(one)) for one in range(candidates)]
    return Decision(
        worker="w0",
        dp_rank=0,
        usable=3,
        judged_by="events",
        policy="kv",
        prompt_tokens=100,
        cached_tokens=48,
        best_cached_tokens=48,
        id=number,
        indexed=3,
        grounds=Said(scores),
        block_size=16,
    )


def journal(clock: Clock, **settings: float) -> tuple[Journal, History]:
    chosen = DashboardSettings(**settings)  # type: ignore[arg-type]  # whole numbers where they have to be
    history = History(chosen, clock)
    return Journal(chosen, history, clock), history


def test_so_many_a_second_are_explained_and_all_are_counted() -> None:
    clock = Clock()
    book, _ = journal(clock, decisions_per_s=5)
    for number in range(100):
        book.placed(decision(number), "ids")
    assert [one.id for one in book.take_changed()] == [0, 1, 2, 3, 4]
    clock.now += 0.5
    for number in range(100, 110):
        book.placed(decision(number), "ids")
    assert [one.id for one in book.take_changed()] == [100, 101]
    assert book.taken == 110


def test_the_end_of_an_explained_one_is_told_and_sums_are_of_all() -> None:
    clock = Clock()
    book, history = journal(clock, decisions_per_s=1)
    for number in range(3):
        book.placed(decision(number), "chat")
    book.take_changed()
    clock.now += 0.25
    book.ended(decision(0), "ok", Usage(100, 32))
    book.ended(decision(1), "ok", None)
    book.ended(decision(2), "broken", None)
    (told,) = book.take_changed()
    assert (told.id, told.source, told.outcome, told.reported_cached_tokens, told.duration_s) == (
        0,
        "chat",
        "ok",
        32,
        0.25,
    )
    clock.now += 1
    sums = history.recent(10)
    assert (sums["requests"], sums["failed_requests"], sums["prompt_tokens"]) == (2, 1, 200)
    assert (sums["expected_cached_tokens"], sums["reports"], sums["reported_cached_tokens"]) == (96, 1, 32)


def test_explanations_and_what_is_kept_of_them_are_bounded() -> None:
    clock = Clock()
    book, _ = journal(clock, decisions_per_s=1000, decisions_kept=3)
    for number in range(10):
        book.placed(decision(number, candidates=50), "ids")
    assert [one.id for one in book.recent] == [one.id for one in book.take_changed()] == [7, 8, 9]
    (*_, last) = book.recent
    assert len(last.explanation["candidates"]) == MOST_CANDIDATES
    assert last.candidates_left_out == 50 - MOST_CANDIDATES
