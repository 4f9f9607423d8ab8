"""Figures of a demo: what is summed, over which requests, in whose time."""

import random

import pytest

from kvevents.simulation.announcements import EventFigures
from kvevents.simulation.comparison import RankComparison, RankHoldings, compare_rank
from kvevents.simulation.replay import Outcome
from kvevents.simulation.report import PolicyFigures, percentile, policy_figures

WORKERS = ["a", "b", "c"]


def figures(
    outcomes: list[Outcome], *, speed: float = 10.0, index: list[RankComparison] | None = None
) -> PolicyFigures:
    return policy_figures(
        "kv",
        outcomes,
        workers=WORKERS,
        speed=speed,
        took_s=1.5,
        lost_engines=[],
        events=EventFigures(),
        index=index or [],
    )


def answered(worker: str, prompt: int, cached: int = 0, *, held: int = 0, first_token_s: float = 0.1) -> Outcome:
    return Outcome(1, prompt, held_tokens=held, worker=worker, cached_tokens=cached, first_token_s=first_token_s)


def test_cached_share_is_over_answered_prompts_only() -> None:
    failed = Outcome(3, 9_000, held_tokens=9_000, error="status 503: gone")
    result = figures([answered("a", 1000, 250), answered("b", 3000, 750), failed, failed])
    assert (result.prompt_tokens, result.cached_tokens, result.cached_share) == (4000, 1000, 0.25)
    assert (result.requests, result.failures, result.failure_reasons) == (4, 2, {"status 503: gone": 2})
    assert result.recomputed_tokens == 0


def test_recomputed_is_what_the_best_held_beyond_what_was_used() -> None:
    result = figures([answered("a", 1000, 256, held=640), answered("a", 1000, 640, held=640), answered("b", 500, 64)])
    assert result.recomputed_tokens == 640 - 256


def test_prefill_is_compared_over_all_workers_also_the_idle_one() -> None:
    result = figures([answered("a", 900), answered("a", 500, 200), answered("b", 600)])
    assert result.prefill_tokens == {"a": 1200, "b": 600, "c": 0}
    assert result.worst_prefill == 2.0


def test_times_are_in_trace_time() -> None:
    result = figures([answered("a", 10, first_token_s=n / 100) for n in range(1, 101)], speed=4.0)
    assert result.first_token_p50_s == pytest.approx(2.0)
    assert result.first_token_p99_s == pytest.approx(3.96)


@pytest.mark.parametrize(("late_s", "kept_pace"), [(0.01, True), (0.2, False)])
def test_lateness_says_whether_the_machine_kept_pace(late_s: float, kept_pace: bool) -> None:
    late = [Outcome(n, 10, sent_late_s=late_s if n < 5 else 0.0) for n in range(100)]
    result = figures(late, speed=10.0)
    assert result.sent_late_p99_s == pytest.approx(late_s * 10)
    assert result.kept_pace is kept_pace


def test_nothing_answered_is_said_not_divided_by() -> None:
    result = figures([Outcome(1, 5, error="gone")])
    assert (result.cached_share, result.first_token_p50_s, result.worst_prefill) == (0.0, None, 1.0)


def test_percentile_is_the_nearest_rank() -> None:
    values = [float(n) for n in range(1, 11)]
    random.Random(1).shuffle(values)
    assert [percentile(values, p) for p in (0, 10, 50, 51, 99, 100)] == [1.0, 1.0, 5.0, 6.0, 10.0, 10.0]
    assert percentile([], 50) is None


def test_a_rank_is_compared_tier_by_tier_in_both_directions() -> None:
    held = RankHoldings(1, 7, {"GPU": {1, 2, 3}, "CPU_PINNED": {1}})
    known = RankHoldings(1, None, {"GPU": {2, 3, 4, 5}, "DISK": {1}})
    rank = compare_rank("w", 1, held, known)
    assert rank == RankComparison("w", 1, blocks=4, missing=2, extra=3, last_seq=7)
    assert rank.differences == 5
    assert figures([], index=[rank, rank]).differences == 10
    assert compare_rank("w", 1, held, held).differences == 0
