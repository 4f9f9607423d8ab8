"""A router under load whose engines die loses nothing that had not begun, does not grow, and stays right."""

import asyncio
import math
from pathlib import Path

import pytest

from soak.client import Answer
from soak.run import Plan, soak
from soak.verdict import Death, Verdict

PLAN = Plan(limit_s=2, warm_up_s=6, soak_s=10, kill_every_s=9, growth_bytes=16 * 2**20)
"""So short a time is all warm-up: only a leak of every request's bytes would be seen."""


@pytest.mark.integration
@pytest.mark.timeout(90)
def test_a_router_at_four_fifths_of_its_limit(tmp_path: Path) -> None:
    outcome = asyncio.run(soak(PLAN, tmp_path))
    assert not outcome.failures, outcome
    assert outcome.deaths >= 1


def answer(ended: float, *, status: int = 200, worker: str = "a", complete: bool = True, error: str = "") -> Answer:
    return Answer(ended - 1, ended, status, worker, complete, error or None, "")


@pytest.mark.parametrize(
    ("outcome", "one"),
    [
        ("ok", answer(50)),
        ("cut", answer(10.5, error="worker a failed")),
        ("lost", answer(10.5, error="worker b failed", worker="b")),
        ("lost", answer(50, error="worker a failed")),
        ("lost", answer(10.5, complete=False)),
        ("lost", answer(10.5, status=502)),
        ("lost", answer(10.5, status=0, complete=False)),
    ],
)
def test_a_request_counts_as(outcome: str, one: Answer) -> None:
    verdict = Verdict(deaths=[Death("a", 10.0, 12.0)])
    verdict.take(one)
    assert verdict.outcomes == {outcome: 1}
    assert bool(verdict.lost) == (outcome == "lost")


def test_growth_is_found() -> None:
    flat = [(float(second), 100 * 2**20 + second % 3) for second in range(100)]
    grown = [(float(second), 100 * 2**20 + second * 2**16) for second in range(100)]
    assert Verdict(memory=flat).growth[0] < 10
    size, allowed = Verdict(memory=grown).growth
    assert size > allowed
    assert math.isclose(Verdict(memory=grown).slope, 60 * 2**16)
    assert any("memory" in failure for failure in Verdict(memory=grown).failures)
