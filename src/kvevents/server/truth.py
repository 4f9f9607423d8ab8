"""Whether engines find cached what their events promise: expected against reported, worker by worker."""

import logging
from typing import Literal, Protocol, TypeAlias

import msgspec

from kvevents.routing import Decision
from kvevents.server.ledger import Outcome
from kvevents.server.usage import Usage

_log = logging.getLogger("kvevents.server")

TOLERANCE = 0.6
"""Of what was expected (or found) so large a part may differ on average. Caches change between decision and prefill, so
single answers differ in healthy fleets, under pressure every third; most of it for good does not happen there."""

EVIDENCE = 5.0
"""Answers' worth of difference above the tolerance that turn a worker degraded: 13 answers that differ wholly."""

AGREEMENTS = 16
"""Answers in a row that have to agree before a worker is believed again."""

SILENCE = 20
"""An engine that answered so often and never said what it found cached is not going to."""

MOST_WORKERS = 4096
"""Workers remembered, those that left among them."""

_MEMORY = 0.05
"""Weight of an answer in the running figures: about the last 20 of them."""

Verdict: TypeAlias = Literal["new", "unknown", "agrees", "stale", "missing"]
"""`unknown`: the engine does not report. `stale`: it finds less than its events promise. `missing`: it finds more."""


class Distrusting(Protocol):
    """What is told of a worker whose events are not to be believed; `Fleet` is one."""

    def distrust(self, worker_id: str, reason: str) -> None: ...
    def trust(self, worker_id: str) -> None: ...


class Weighing(Protocol):
    """What weighs such a worker's matches; `Router` is one."""

    def set_trust(self, worker: str, trust: float | None) -> None: ...


class Agreement(msgspec.Struct):
    """One worker's promises and what became of them.

    Attributes:
        answers: with status 200 to their end.
        reports: of those, how many said what was found cached.
        judged: of those, how many could be compared.
        raced: not compared, since the prompt or a part of it was on its way to the worker already.
        lengths_differ: reports of a prompt length that is not the router's: another tokenizer or chat template, or
            images.
        expected_tokens: expected to be found cached, over all that were compared.
        reported_tokens: found cached, likewise.
        error: running mean of reported minus expected, as a share of the prompt.
        kept: running mean of the part of what was expected that was found, 0 to 1.
        stale_evidence: how much speaks for an index that believes in blocks that are not there, in answers.
        missing_evidence: how much speaks for events that are missing, in answers.
        agreeing: answers in a row that agreed.
        distrusted: why its events are not believed; None while they are.
        distrusts: how often they began not to be.
    """

    answers: int = 0
    reports: int = 0
    judged: int = 0
    raced: int = 0
    lengths_differ: int = 0
    expected_tokens: int = 0
    reported_tokens: int = 0
    error: float = 0.0
    kept: float = 1.0
    stale_evidence: float = 0.0
    missing_evidence: float = 0.0
    agreeing: int = 0
    distrusted: str | None = None
    distrusts: int = 0

    @property
    def verdict(self) -> Verdict:
        """All of it in a word."""
        if self.distrusted is not None:
            return "stale" if self.stale_evidence >= self.missing_evidence else "missing"
        if self.answers >= SILENCE and not self.reports:
            return "unknown"
        return "agrees" if self.judged else "new"


class Truth:
    """Listens to the ledger; turns workers `degraded` whose caches and events drift apart, and back.

    Each comparison adds the part that differs, less a tolerance, to the evidence against a worker, which never falls
    below 0 (a CUSUM): chance differences wear off, lasting ones add up, whatever their size above the tolerance.
    What waits before a prompt makes its comparison count less, since caches change meanwhile.

    Args:
        fleet: told whom not to believe.
        router: told what the matches of such a worker are worth: the part of its promises that it kept.
    """

    def __init__(self, fleet: Distrusting, router: Weighing) -> None:
        self._fleet = fleet
        self._router = router
        self.workers: dict[str, Agreement] = {}

    def placed(self, decision: Decision, prompt_source: str) -> None:
        """Nothing yet: what was found cached is known at the end."""

    def ended(self, decision: Decision, outcome: Outcome, usage: Usage | None) -> None:
        """An attempt is over; compare where there is something to compare."""
        if outcome != "ok":
            return
        computing = decision.prefill or decision
        agreement = self._agreement(computing.worker)
        agreement.answers += 1
        if usage is None:
            return
        agreement.reports += 1
        expected = decision.indexed_tokens
        if expected is None or not decision.prompt_tokens:
            return
        if usage.prompt_tokens != decision.prompt_tokens:
            agreement.lengths_differ += 1
            if not _is_alike(usage.prompt_tokens, decision.prompt_tokens):
                return  # several prompts in one request, or images: nothing was promised for those
        score = computing.grounds.chosen
        if score.pending:
            agreement.raced += 1
            return
        if score.state != "live" and agreement.distrusted is None:
            return  # nothing complete was promised
        self._compare(agreement, decision, expected, usage.cached_tokens, queued=score.queued)
        self._judge(computing.worker, agreement)

    def forget(self, worker: str) -> None:
        """A worker left."""
        self.workers.pop(worker, None)

    def _agreement(self, worker: str) -> Agreement:
        agreement = self.workers.get(worker)
        if agreement is None:
            if len(self.workers) >= MOST_WORKERS:
                self.workers.pop(next(iter(self.workers)))
            agreement = self.workers[worker] = Agreement()
        return agreement

    @staticmethod
    def _compare(agreement: Agreement, decision: Decision, expected: int, reported: int, *, queued: float) -> None:
        """Add a comparison to the evidence; less than a block is no difference, engines cut finer than the index."""
        prompt, block = decision.prompt_tokens, decision.block_size
        weight = prompt / (prompt + queued)
        lost = (expected - reported) / expected if expected - reported >= block else 0.0
        unsaid = (reported - expected) / reported if reported - expected >= block else 0.0
        agreement.judged += 1
        agreement.expected_tokens += expected
        agreement.reported_tokens += reported
        agreement.error += _MEMORY * ((reported - expected) / prompt - agreement.error)
        if expected:
            agreement.kept += _MEMORY * (1.0 - lost - agreement.kept)
            agreement.stale_evidence = _bounded(agreement.stale_evidence + weight * (lost - TOLERANCE))
        if reported >= block:
            agreement.missing_evidence = _bounded(agreement.missing_evidence + weight * (unsaid - TOLERANCE))
        if max(lost, unsaid) > TOLERANCE:
            agreement.agreeing = 0
        elif expected or reported:
            agreement.agreeing += 1

    def _judge(self, worker: str, agreement: Agreement) -> None:
        is_bad = max(agreement.stale_evidence, agreement.missing_evidence) >= EVIDENCE
        if is_bad:
            if agreement.distrusted is None:
                agreement.distrusts += 1
                agreement.distrusted = _reason(agreement)
                _log.warning("worker %s is not believed: %s", worker, agreement.distrusted)
            self._fleet.distrust(worker, agreement.distrusted)
        elif agreement.distrusted is not None and agreement.agreeing >= AGREEMENTS:
            agreement.distrusted = None
            agreement.stale_evidence = agreement.missing_evidence = 0.0
            _log.warning("worker %s is believed again: it finds cached what its events promise", worker)
            self._fleet.trust(worker)
            self._router.set_trust(worker, None)
            return
        if agreement.distrusted is not None:
            self._router.set_trust(worker, min(1.0, max(0.0, agreement.kept)))


def _bounded(evidence: float) -> float:
    """At least 0, and never so much that a worker that has mended would have to wear it off for hours."""
    return min(2 * EVIDENCE, max(0.0, evidence))


def _is_alike(one: int, other: int) -> bool:
    return one < 1.5 * other and other < 1.5 * one


def _reason(agreement: Agreement) -> str:
    if agreement.stale_evidence >= agreement.missing_evidence:
        cause = "its cache is off or cleared without a word, or events are of another engine, adapter or salt"
        what = "finds less cached than its events promise"
    else:
        cause = "events are missing, or its tokenizer is another than the router's"
        what = "finds more cached than its events tell"
    if agreement.lengths_differ:
        cause = (
            f"{agreement.lengths_differ} of {agreement.reports} prompts have another length there: its tokenizer or "
            f"chat template is another than the router's"
        )
    return (
        f"it {what}, {agreement.reported_tokens} tokens reported for {agreement.expected_tokens} expected in "
        f"{agreement.judged} answers: {cause}"
    )
