"""From what the caches hold and what is in flight to one score a candidate."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kvevents._core.learned import PromptChain
from kvevents.routing.approx import LearnedIndex
from kvevents.routing.decision import Score
from kvevents.routing.load import Load, Reported
from kvevents.routing.settings import RoutingSettings

EVENTS_LAG_S = 1.0
"""What was computed is told by events within this time: for so long after its prefill a prompt counts as on its way."""

LIVE = "live"

_NO_TIERS: Mapping[str, int] = {}


class Match(Protocol):
    """What the router reads of `kvevents.index.WorkerMatch`."""

    @property
    def worker(self) -> str: ...
    @property
    def dp_rank(self) -> int | None: ...
    @property
    def usable(self) -> int: ...
    @property
    def fastest(self) -> Mapping[str, int]: ...
    @property
    def state(self) -> str: ...


class PrefixMatcher(Protocol):
    """What the router needs of an index; `kvevents.index.PrefixIndex` is one."""

    @property
    def block_size(self) -> int: ...

    def match(
        self,
        tokens: Any,
        *,
        lora_name: str | None = None,
        lora_id: int | None = None,
        cache_salt: str | None = None,
        extra_keys: Any = None,
    ) -> Sequence[Match]: ...


class Candidate:
    """One rank of one worker.

    Attributes:
        worker: the worker's id.
        dp_rank: the rank.
        holder: what stands for it in the learned index.
        load: what it has to do.
        source: state of its event source; None where it has none.
        trust: what anything that is believed of it was found to be worth while its source is not live; None where that
            was not measured.
    """

    __slots__ = ("dp_rank", "holder", "load", "source", "trust", "worker")

    def __init__(self, worker: str, dp_rank: int, *, holder: int, load: Load, source: str | None) -> None:
        self.worker = worker
        self.dp_rank = dp_rank
        self.holder = holder
        self.load = load
        self.source = source
        self.trust: float | None = None


class Scorer:
    """Judges candidates by events where they can be trusted, else by what was sent to them.

    Args:
        settings: the weights.
    """

    def __init__(self, settings: RoutingSettings) -> None:
        self._trust = settings.trust
        self._half_life_s = settings.reported_half_life_s
        self._weights = tuple(settings.weights.items())
        self._fastest, self._fastest_weight = self._weights[0]
        self.mean_prompt = 0.0
        self.mean_prefill = 0.0

    def observe(self, *, prompt_tokens: int, prefill: float) -> None:
        """A prompt was placed: what requests of others are like is guessed from ours."""
        self.mean_prompt += 0.05 * (prompt_tokens - self.mean_prompt)
        self.mean_prefill += 0.05 * (prefill - self.mean_prefill)

    def scores(
        self,
        candidates: Sequence[Candidate],
        found: Mapping[tuple[str, int], Match],
        learned: LearnedIndex,
        chain: PromptChain,
        *,
        prompt_tokens: int,
        by_events: bool,
        now: float,
        age: float,
    ) -> list[Score]:
        """A score without a cost for each candidate, in their order."""
        block_size = learned.block_size
        most = max(0, (prompt_tokens - 1) // block_size)
        oldest = learned.oldest
        told = []
        since = []
        for candidate in candidates:
            match = found.get((candidate.worker, candidate.dp_rank)) if candidate.source is not None else None
            state = candidate.source if match is None else match.state
            is_live = by_events and state == LIVE
            told.append((match, state, is_live))
            prefilling = candidate.load.prefilling
            recent = (next(iter(prefilling.values())) if prefilling else now) - EVENTS_LAG_S
            since.append((candidate.holder, recent if is_live else oldest))
        depths = learned.depths(chain, since)
        least = min(candidate.load.recent for candidate in candidates)
        scores = []
        places = []
        for candidate, (match, state, is_live), depth in zip(candidates, told, depths, strict=True):
            load = candidate.load
            sent = min(depth, most)
            indexed = 0 if match is None else min(match.usable, most)
            saved = 0.0 if match is None else self._saved(match, indexed)
            is_told = is_live
            pending = 0
            if is_live:
                usable = indexed
                pending = max(0, sent - usable)
                saved += pending
            else:
                trust = candidate.trust if state != LIVE else None
                saved *= (self._trust if trust is None else 1.0) if by_events else 0.0
                is_told = saved > sent
                usable = indexed if is_told else sent
                saved = max(saved, sent) * (1.0 if trust is None else trust)
            queued, held = float(load.queued), float(load.held)
            if load.reported is not None:
                queued, held = self._with_others(load.reported, queued, held, now)
            places.append((candidate.holder, usable + pending))
            scores.append(
                Score(
                    candidate.worker,
                    candidate.dp_rank,
                    "events" if is_told else "learned",
                    usable,
                    None if candidate.source is None else indexed,
                    pending,
                    match.fastest if is_told and match is not None else _NO_TIERS,
                    state,
                    prompt_tokens - saved * block_size,
                    queued,
                    held,
                    load.requests,
                    load.recent - least,
                    0.0,
                    None if load.reported is None else load.reported[:2],
                )
            )
        for score, (_, depth), work in zip(scores, places, learned.works(chain, places, age), strict=True):
            score.shared = work if depth else score.surplus
        return scores

    def _saved(self, match: Match, usable: int) -> float:
        """Blocks that need not be computed; those that come from slower tiers count in part.

        What is usable is counted from the first block on, and of a prompt's blocks the slower ones are its last: what
        is held but not usable is taken off the slowest tier first.
        """
        fastest = match.fastest
        if fastest.get(self._fastest, 0) >= usable:
            return self._fastest_weight * usable
        left = usable
        saved = 0.0
        for tier, weight in self._weights:
            blocks = min(left, fastest.get(tier, 0))
            saved += weight * blocks
            left -= blocks
        return saved

    def _with_others(self, reported: Reported, queued: float, held: float, now: float) -> tuple[float, float]:
        """The load with the requests that others sent there, fading as the news of them ages."""
        fade = 0.5 ** ((now - reported.at) / self._half_life_s)
        tokens: float | None = reported.foreign_tokens
        if tokens is None:
            tokens = self.mean_prompt * (reported.foreign_running + reported.foreign_waiting)
        return queued + fade * self.mean_prefill * reported.foreign_waiting, held + fade * tokens
