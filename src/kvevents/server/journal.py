"""Decisions of late with their explanation. Bounded in number and in how many are explained a second."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from kvevents.routing import Decision
from kvevents.server.dashboard.settings import DashboardSettings
from kvevents.server.history import History
from kvevents.server.ledger import Outcome
from kvevents.server.usage import Usage

MOST_CANDIDATES = 16
"""Candidates in an explanation at most: the chosen one, then those that would have cost least."""

MOST_OPEN = 100_000
"""Requests whose start is remembered at once."""


class Shown(msgspec.Struct):
    """A decision as it is shown.

    Attributes:
        id: of the decision, unique while the router runs.
        at: when it was taken, unix seconds.
        source: what the prompt's tokens came from.
        outcome: what became of it; None while the request is open.
        reported_cached_tokens: what the engine said; None when it said nothing.
        duration_s: from the decision to the end of the answer.
        explanation: of the decision, its candidates bounded.
        candidates_left_out: candidates that are not in the explanation.
    """

    id: int
    at: float
    source: str | None
    explanation: dict[str, Any]
    candidates_left_out: int
    outcome: Outcome | None = None
    reported_cached_tokens: int | None = None
    duration_s: float | None = None


class Journal:
    """Listens to the ledger; explains so many decisions a second and counts the rest."""

    def __init__(self, settings: DashboardSettings, history: History, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._history = history
        self._rate = settings.decisions_per_s
        self._kept = settings.decisions_kept
        self._credit = self._rate
        self._credited = clock()
        self._shown: OrderedDict[int, Shown] = OrderedDict()
        self._open: dict[int, float] = {}
        self._changed: dict[int, Shown] = {}
        self.taken = 0

    @property
    def recent(self) -> list[Shown]:
        """Explained decisions, oldest first."""
        return list(self._shown.values())

    def take_changed(self) -> list[Shown]:
        """Explained decisions that are new, or have ended, since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed.values())

    def placed(self, decision: Decision, prompt_source: str | None = None) -> None:
        """A worker was chosen for a request."""
        now = self._clock()
        self.taken += 1
        if len(self._open) < MOST_OPEN:
            self._open[decision.id] = now
        self._credit = min(self._rate, self._credit + (now - self._credited) * self._rate)
        self._credited = now
        if self._credit >= 1:
            self._credit -= 1
            self._show(decision, prompt_source, now)

    def ended(self, decision: Decision, outcome: Outcome, usage: Usage | None) -> None:
        """An attempt is over."""
        started = self._open.pop(decision.id, None)
        duration_s = None if started is None else max(0.0, self._clock() - started)
        if outcome == "ok":
            reported = None if usage is None else (usage.prompt_tokens, usage.cached_tokens)
            self._history.answered(decision.prompt_tokens, decision.cached_tokens, reported, duration_s)
        else:
            self._history.add("failed_requests", 1)
        shown = self._shown.get(decision.id)
        if shown is not None:
            shown.outcome = outcome
            shown.duration_s = duration_s
            shown.reported_cached_tokens = None if usage is None else usage.cached_tokens
            self._changed[shown.id] = shown

    def _show(self, decision: Decision, source: str | None, now: float) -> None:
        explanation = decision.explain()
        candidates = explanation["candidates"]
        shown = Shown(
            id=decision.id,
            at=now,
            source=source,
            explanation={**explanation, "candidates": candidates[:MOST_CANDIDATES]},
            candidates_left_out=max(0, len(candidates) - MOST_CANDIDATES),
        )
        self._shown[shown.id] = self._changed[shown.id] = shown
        if len(self._shown) > self._kept:
            _, oldest = self._shown.popitem(last=False)
            self._changed.pop(oldest.id, None)
