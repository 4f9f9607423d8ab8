"""What became of the requests, counted."""

import logging
from collections import Counter, defaultdict
from typing import Literal, Protocol, TypeAlias

import msgspec

from kvevents.routing import Decision
from kvevents.routing.decision import JudgedBy
from kvevents.server.usage import Usage

Outcome: TypeAlias = Literal["ok", "refused", "client_left", "broken", "unanswered"]

_log = logging.getLogger("kvevents.server")

MOST_WORKERS = 4096
"""Workers that are counted one by one; where they come and go, those after are counted as `OTHER`."""

OTHER = "other"


class PolicyCounts(msgspec.Struct):
    """Sums over the requests that one policy placed and an engine answered.

    Attributes:
        requests: answered with status 200 to their end.
        prompt_tokens: of their prompts, as the router counted them.
        expected_cached_tokens: what the router expected to be found cached.
        missed_cached_tokens: what another worker held beyond that.
        reports: replies whose usage said what was found cached.
        reported_prompt_tokens: prompt tokens in those replies.
        reported_cached_tokens: cached tokens in those replies.
    """

    requests: int = 0
    prompt_tokens: int = 0
    expected_cached_tokens: int = 0
    missed_cached_tokens: int = 0
    reports: int = 0
    reported_prompt_tokens: int = 0
    reported_cached_tokens: int = 0


class Observer(Protocol):
    """Is told of every attempt as the ledger is."""

    def placed(self, decision: Decision, prompt_source: str) -> None: ...
    def ended(self, decision: Decision, outcome: Outcome, usage: Usage | None) -> None: ...


class Ledger:
    """Counts by policy, worker and outcome.

    Attributes:
        policies: sums per policy.
        outcomes: attempts per (worker, outcome), a bounded number of workers one by one; outcomes are `ok`, `refused`
            (the engine's own error), `client_left`, `broken` (ended in the middle) and `unanswered` (failed before
            anything was sent to the client).
        unplaced: requests that no worker could take.
        unread: requests whose prompt the router could not read as tokens.
        prompts: attempts by what the prompt was given as.
        judged: attempts by (policy, what the worker's caches were judged by).
        observers: told of every attempt, too. One that fails is counted, and harms neither the others nor the request.
        observer_failures: how often one failed.
    """

    def __init__(self) -> None:
        self.policies: defaultdict[str, PolicyCounts] = defaultdict(PolicyCounts)
        self.outcomes: Counter[tuple[str, Outcome]] = Counter()
        self._workers: set[str] = set()
        self.prompts: Counter[str] = Counter()
        self.judged: Counter[tuple[str, JudgedBy]] = Counter()
        self.unplaced = 0
        self.unread = 0
        self.observers: list[Observer] = []
        self.observer_failures = 0

    def placed(self, decision: Decision, prompt_source: str) -> None:
        """A worker was chosen for a request whose prompt came as `prompt_source`."""
        self.prompts[prompt_source] += 1
        self.judged[decision.policy, (decision.prefill or decision).judged_by] += 1
        for observer in self.observers:
            try:
                observer.placed(decision, prompt_source)
            except Exception:
                self._failed(observer)

    def ended(self, decision: Decision, outcome: Outcome, usage: Usage | None) -> None:
        """An attempt is over; `usage` is what the engine reported, if it did."""
        self.outcomes[self._named(decision.worker), outcome] += 1
        for observer in self.observers:
            try:
                observer.ended(decision, outcome, usage)
            except Exception:
                self._failed(observer)
        if outcome != "ok":
            return
        counts = self.policies[decision.policy]
        counts.requests += 1
        counts.prompt_tokens += decision.prompt_tokens
        counts.expected_cached_tokens += decision.cached_tokens
        counts.missed_cached_tokens += decision.best_cached_tokens - decision.cached_tokens
        if usage is not None:
            counts.reports += 1
            counts.reported_prompt_tokens += usage.prompt_tokens
            counts.reported_cached_tokens += usage.cached_tokens

    def _named(self, worker: str) -> str:
        """The worker as it is counted: ids are bounded, since others keep what is counted for ever."""
        if worker not in self._workers:
            if len(self._workers) >= MOST_WORKERS:
                return OTHER
            self._workers.add(worker)
        return worker

    def _failed(self, observer: Observer) -> None:
        """The first failure is told in full; all are counted."""
        self.observer_failures += 1
        if self.observer_failures == 1:
            _log.exception("%s: what became of a request is not in its figures", type(observer).__name__)
