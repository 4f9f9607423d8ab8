"""Expected against reported: who is found out, after how much, and who never is."""

import random
from typing import Literal

import pytest

from kvevents.routing import Decision, Router
from kvevents.server.ledger import Ledger
from kvevents.server.truth import AGREEMENTS, SILENCE, Truth
from kvevents.server.usage import Usage
from routing_index import BLOCK, ModelIndex

PROMPT = list(range(10 * BLOCK))


class Fleet:
    """Keeps what it is told, as the index would be told."""

    def __init__(self, index: ModelIndex) -> None:
        self.index = index
        self.reasons: dict[str, str] = {}
        self.changes = 0

    def distrust(self, worker_id: str, reason: str) -> None:
        self.changes += worker_id not in self.reasons
        self.reasons[worker_id] = reason
        self.index.states[worker_id] = "degraded"

    def trust(self, worker_id: str) -> None:
        del self.reasons[worker_id]
        self.changes += 1
        self.index.states.pop(worker_id)


class Service:
    """A router over a model index, with the truth behind its ledger."""

    def __init__(self, workers: list[str]) -> None:
        self.now = 0.0
        self.index = ModelIndex()
        self.fleet = Fleet(self.index)
        self.router = Router(self.index, workers, clock=lambda: self.now)
        self.truth = Truth(self.fleet, self.router)
        self.ledger = Ledger()
        self.ledger.observers.append(self.truth)

    def answer(
        self,
        cached: int | None,
        prompt: list[int] = PROMPT,
        outcome: Literal["ok", "broken"] = "ok",
        length: int | None = None,
    ) -> Decision:
        decision = self.router.select(prompt)
        self.ledger.placed(decision, "ids")
        self.router.complete(decision)
        usage = None if cached is None else Usage(length or len(prompt), cached)
        self.ledger.ended(decision, outcome, usage)
        self.now += 10  # so that no prompt is on its way when the next one comes
        return decision


def test_an_engine_that_finds_nothing_of_what_it_promised_is_found_within_fifteen_answers() -> None:
    service = Service(["w0"])
    service.index.store("w0", PROMPT)
    for _ in range(15):
        service.answer(0)
    assert "finds less cached than its events promise" in service.fleet.reasons["w0"]
    agreement = service.truth.workers["w0"]
    assert (agreement.verdict, agreement.distrusts) == ("stale", 1)
    assert agreement.error < 0
    for _ in range(40):
        service.answer(0)
    assert agreement.kept < 0.2
    assert service.answer(0).scores[0].prefill > len(PROMPT) - 0.2 * 9 * BLOCK  # its word is worth next to nothing


def test_an_engine_that_finds_what_its_events_never_told_is_found_too() -> None:
    service = Service(["w0"])
    for _ in range(15):
        service.answer(9 * BLOCK)
    assert "finds more cached than its events tell" in service.fleet.reasons["w0"]
    assert service.truth.workers["w0"].verdict == "missing"


def test_another_tokenizer_is_named_as_the_cause() -> None:
    service = Service(["w0"])
    for _ in range(13):
        service.answer(9 * BLOCK, length=len(PROMPT) + 3)
    assert "13 of 13 prompts have another length there: its tokenizer" in service.fleet.reasons["w0"]


def test_several_prompts_in_one_request_are_no_evidence() -> None:
    service = Service(["w0"])
    for _ in range(30):
        service.answer(300, length=8 * len(PROMPT))
    assert not service.fleet.reasons
    assert service.truth.workers["w0"].judged == 0


def test_it_is_believed_again_when_it_has_agreed_for_long_enough() -> None:
    service = Service(["w0"])
    service.index.store("w0", PROMPT)
    while not service.fleet.reasons:
        service.answer(0)
    for _ in range(AGREEMENTS - 1):
        service.answer(9 * BLOCK)
    service.answer(0)
    assert service.fleet.reasons
    for _ in range(2 * AGREEMENTS):
        service.answer(9 * BLOCK)
    assert not service.fleet.reasons
    assert service.truth.workers["w0"].verdict == "agrees"
    assert service.fleet.changes == 2


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_engine_whose_blocks_come_and_go_is_never_doubted(seed: int) -> None:
    dice = random.Random(seed)
    service = Service(["w0"])
    service.index.store("w0", PROMPT)
    for _ in range(3000):  # a third evicted meanwhile, a tenth partly; some found more since another had just ended
        kind = dice.random()
        reported = (
            0 if kind < 0.33 else dice.randrange(10) * BLOCK if kind < 0.43 else 9 * BLOCK + dice.randrange(BLOCK)
        )
        service.answer(reported)
        assert not service.fleet.reasons


def test_less_than_a_block_is_no_difference() -> None:
    service = Service(["w0"])
    for _ in range(100):
        service.answer(BLOCK - 1)
    assert not service.fleet.reasons


def test_silence_is_said_and_failures_say_nothing() -> None:
    service = Service(["w0"])
    service.index.store("w0", PROMPT)
    for _ in range(SILENCE):
        service.answer(None)
        service.answer(0, outcome="broken")
    agreement = service.truth.workers["w0"]
    assert (agreement.verdict, agreement.answers, agreement.reports) == ("unknown", SILENCE, 0)
    service.truth.forget("w0")
    assert not service.truth.workers


def test_prompts_on_their_way_and_sources_that_are_not_live_are_not_compared() -> None:
    service = Service(["w0"])
    open_one = service.router.select(PROMPT)
    for _ in range(12):
        decision = service.router.select(PROMPT)
        service.ledger.ended(decision, "ok", Usage(len(PROMPT), 9 * BLOCK))
        service.router.complete(decision)
    service.router.complete(open_one)
    agreement = service.truth.workers["w0"]
    assert (agreement.raced, agreement.judged) == (12, 0)
    service.router.set_source("w0", None, "recovering")
    service.index.states["w0"] = "recovering"
    for _ in range(12):
        service.answer(9 * BLOCK)
    assert agreement.judged == 0
    assert not service.fleet.reasons


def test_workers_that_come_and_go_leave_bounded_books(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvevents.server.ledger.MOST_WORKERS", 2)
    ledger = Ledger()
    for worker in ("w0", "w1", "w2", "w3", "w0"):
        ledger.ended(Router(ModelIndex(), [worker]).select(PROMPT), "ok", None)
    assert ledger.outcomes == {("w0", "ok"): 2, ("w1", "ok"): 1, ("other", "ok"): 2}


class Broken:
    def placed(self, decision: Decision, prompt_source: str) -> None:
        raise RuntimeError("no")

    def ended(self, decision: Decision, outcome: str, usage: Usage | None) -> None:
        raise RuntimeError("no")


def test_an_observer_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    service = Service(["w0"])
    service.ledger.observers.insert(0, Broken())
    for _ in range(2):
        service.answer(0)
    assert service.ledger.observer_failures == 4
    assert service.ledger.prompts == {"ids": 2}
    assert service.ledger.judged == {("kv", "events"): 2}
    assert service.truth.workers["w0"].answers == 2
    assert caplog.text.count("Broken: what became of a request is not in its figures") == 1
