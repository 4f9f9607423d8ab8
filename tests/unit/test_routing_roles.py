"""Prefill and decode on different workers, and workers with several ranks."""

import pytest

from kvevents.errors import ConfigError
from kvevents.routing import NoWorkerError, Router, RoutingSettings
from routing_index import BLOCK, ModelIndex

PROMPT = list(range(10 * BLOCK))


def split(index: ModelIndex) -> Router:
    router = Router(index, settings=RoutingSettings(request_tokens=0))
    for worker in ("p0", "p1"):
        router.add_worker(worker, role="prefill")
    for worker in ("d0", "d1"):
        router.add_worker(worker, role="decode")
    return router


def test_prompts_go_where_they_are_cached_and_answers_where_there_is_least_to_do() -> None:
    index = ModelIndex()
    index.store("p1", PROMPT)
    index.store("d0", PROMPT)
    router = split(index)
    chosen = [router.select(PROMPT) for _ in range(4)]
    assert [one.prefill.worker for one in chosen if one.prefill] == ["p1"] * 4
    assert [one.worker for one in chosen] == ["d0", "d1", "d0", "d1"]
    first = chosen[0]
    assert first.prefill is not None
    assert (first.role, first.prefill.role) == ("decode", "prefill")
    assert first.cached_tokens == first.prefill.cached_tokens == first.indexed_tokens == 9 * BLOCK
    assert first.explain()["prefill"]["worker"] == "p1"


def test_both_books_are_kept() -> None:
    router = split(ModelIndex())
    decision = router.select(PROMPT)

    def load(worker: str) -> tuple[int, int, int]:
        found = router.loads()[worker, 0]
        return found.requests, found.queued, found.decode

    assert (load("p0"), load("d0")) == ((1, 40, 0), (1, 0, 40))
    router.prefill_done(decision)
    assert (load("p0"), load("d0")) == ((0, 0, 0), (1, 0, 40))
    router.complete(decision)
    assert (load("p0"), load("d0")) == ((0, 0, 0), (0, 0, 0))
    assert router.loads()["p0", 0].recent == 40
    router.fail(router.select(PROMPT))
    assert not any(load.requests or load.queued or load.decode for load in router.loads().values())


def test_a_role_that_nobody_has_is_named() -> None:
    router = split(ModelIndex())
    router.set_up("d0", False)
    with pytest.raises(NoWorkerError, match=r"no worker with the role decode .*d0 down, d1 tried"):
        router.select(PROMPT, exclude={"d1": "tried"})
    router.add_worker("both")
    assert router.select(PROMPT, exclude=["d1"]).worker == "both"
    router.set_up("d0", True)
    assert router.select(PROMPT).worker in {"d0", "d1"}
    with pytest.raises(ConfigError, match="role: expected prefill, decode or none, got 'router'"):
        router.add_worker("w", role="router")  # type: ignore[arg-type]


def test_policies_that_look_at_no_cache_choose_both_by_their_own_rule() -> None:
    router = split(ModelIndex())
    router.policy = "round_robin"
    chosen = [router.select(PROMPT) for _ in range(4)]
    assert [(one.prefill.worker, one.worker) for one in chosen if one.prefill] == [("p0", "d0"), ("p1", "d1")] * 2
