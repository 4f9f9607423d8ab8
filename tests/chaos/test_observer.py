"""The judge of the chaos rounds finds what it is there to find."""

import pytest

from chaos.observer import DETECTION_BOUND_S, Held, _Rank, difference

A, B = {"GPU": frozenset({1, 2})}, {"GPU": frozenset({1})}


def seen(*batches: tuple[float, int, dict[str, frozenset[int]]]) -> _Rank:
    rank = _Rank()
    for at, seq, blocks in batches:
        rank.learn(1, Held(seq, blocks), at)
    return rank


def test_the_same_after_the_same_batch_is_right() -> None:
    assert seen((0.0, 5, A)).fault(Held(5, A), now=10.0) is None


def test_another_picture_after_the_same_batch_is_wrong() -> None:
    assert "0 too many, 1 missing" in str(seen((0.0, 5, A)).fault(Held(5, B), now=0.1))


def test_a_batch_behind_is_wrong_when_the_bound_has_passed() -> None:
    rank = seen((0.0, 4, B), (1.0, 5, A))
    assert rank.fault(Held(4, B), now=1.0 + DETECTION_BOUND_S / 2) is None
    assert "it is at batch 4" in str(rank.fault(Held(4, B), now=1.1 + DETECTION_BOUND_S))


def test_a_picture_of_an_engine_that_ended_is_wrong() -> None:
    rank = seen((0.0, 5, A))
    rank.learn(2, Held(0, {}), 1.0)
    assert "of a life that ended" in str(rank.fault(Held(5, A), now=1.1))


@pytest.mark.parametrize(("now", "is_wrong"), [(1.0, False), (1.5 + 2 * DETECTION_BOUND_S, True)])
def test_behind_a_relay_an_engine_is_compared_once_it_rests(now: float, is_wrong: bool) -> None:
    rank = seen((0.0, 4, B), (1.0, 5, A), (1.5, 5, A))
    assert (rank.fault_after_rest(Held(77, B), now) is not None) is is_wrong
    assert rank.fault_after_rest(Held(77, A), now) is None


def test_differences_name_every_tier() -> None:
    said = difference({"GPU": frozenset({1})}, {"DISK": frozenset({3, 4})})
    assert said == "DISK: 0 too many, 2 missing; GPU: 1 too many, 0 missing"
