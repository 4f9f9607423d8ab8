"""The law of routing and its books in plain Python, one candidate after the other: what the table is held against."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from kvevents._core.learned import LearnedIndex, PromptChain
from kvevents.routing import KvPolicy, RoutingSettings, Score
from routing_index import BLOCK, Held

NO_MATCH = Held("", 0, 0)
EVENTS_LAG_S = 1.0


class Rank:
    """One candidate with the work in flight on it."""

    def __init__(self, worker: str, dp_rank: int, holder: int) -> None:
        self.worker = worker
        self.dp_rank = dp_rank
        self.holder = holder
        self.source: str | None = "live"
        self.trust: float | None = None
        self.queued = self.held = 0
        self.recent = 0.0
        self.last_chosen = 0
        self.opened: dict[int, float] = {}
        self.prefilling: dict[int, float] = {}
        self.reported: tuple[int, int] | None = None
        self.foreign = (0, 0, 0.0)
        self.foreign_tokens: int | None = None

    def report(self, running: int, waiting: int, tokens: int | None, now: float) -> None:
        foreign_waiting = max(0, waiting - len(self.prefilling))
        self.reported = running, waiting
        self.foreign = max(0, running + waiting - len(self.opened) - foreign_waiting), foreign_waiting, now
        self.foreign_tokens = None if tokens is None else max(0, tokens - self.held)


class Oracle:
    """The books of a router over ranks, and what it makes of a prompt."""

    def __init__(self, workers: Mapping[str, int], settings: RoutingSettings, clock: Callable[[], float]) -> None:
        names = [(worker, dp_rank) for worker, ranks in workers.items() for dp_rank in range(ranks)]
        self.ranks = [Rank(worker, dp_rank, holder) for holder, (worker, dp_rank) in enumerate(names)]
        self._settings = settings
        self._clock = clock
        self._policy = KvPolicy(settings)
        self._learned = LearnedIndex(BLOCK, settings.learned_max_blocks)
        self._open: dict[int, tuple[Rank, int, int]] = {}
        self._age = self._mean_prompt = self._mean_prefill = 0.0
        self._turn = 0

    def chain(self, prompt: Any, *, approximate: bool) -> PromptChain:
        return self._learned.chain(prompt, None, None, None, None, approximate)

    def scores(self, prompt: Any, found: Mapping[tuple[str, int], Held], *, approximate: bool) -> list[Score]:
        """One for each candidate, the one to choose first, then by cost."""
        least = min(rank.recent for rank in self.ranks)
        chain = self.chain(prompt, approximate=approximate)
        pairs = [(self._score(rank, found, chain, len(prompt), approximate, least), rank) for rank in self.ranks]
        pairs.sort(key=lambda pair: (pair[0].cost, pair[1].last_chosen, pair[1].dp_rank))
        return [score for score, _ in pairs]

    def _score(
        self,
        rank: Rank,
        found: Mapping[tuple[str, int], Held],
        chain: PromptChain,
        length: int,
        approximate: bool,
        least: float,
    ) -> Score:
        most = max(0, (length - 1) // BLOCK)
        now, settings = self._clock(), self._settings
        match = None if approximate or rank.source is None else found.get((rank.worker, rank.dp_rank))
        state = rank.source if match is None else match.state
        is_live = not approximate and state == "live"
        oldest = now - settings.learned_ttl_s
        since = next(iter(rank.prefilling.values()), now) - EVENTS_LAG_S if is_live else oldest
        (depth,) = self._learned.depths(chain, [(rank.holder, since)])
        sent = min(depth, most)
        indexed = min((match or NO_MATCH).usable, most)
        saved, left = 0.0, indexed
        for tier, weight in settings.weights.items():
            blocks = min(left, (match or NO_MATCH).fastest.get(tier, 0))
            saved += weight * blocks
            left -= blocks
        pending = 0
        if is_live:
            is_told, usable, pending = True, indexed, max(0, sent - indexed)
            saved += pending
        else:
            trust = rank.trust if state != "live" else None
            saved *= 0.0 if approximate else settings.trust if trust is None else 1.0
            is_told = saved > sent
            usable = indexed if is_told else sent
            saved = max(saved, sent) * (1.0 if trust is None else trust)
        queued, held = float(rank.queued), float(rank.held)
        if rank.reported is not None:
            running, waiting, at = rank.foreign
            fade = 0.5 ** ((now - at) / settings.reported_half_life_s)
            tokens = self._mean_prompt * (running + waiting) if rank.foreign_tokens is None else rank.foreign_tokens
            queued, held = queued + fade * self._mean_prefill * waiting, held + fade * tokens
        surplus = rank.recent - least
        shared = surplus
        if usable + pending:
            (shared,) = self._learned.works(chain, [(rank.holder, usable + pending)], self._age)
        score = Score(
            rank.worker,
            rank.dp_rank,
            judged_by="events" if is_told else "learned",
            usable=usable,
            indexed=None if rank.source is None else indexed,
            pending=pending,
            tiers={tier: match.fastest.get(tier, 0) if match else 0 for tier in settings.weights if is_told and match},
            state=state,
            prefill=length - saved * BLOCK,
            queued=queued,
            held=held,
            requests=len(rank.opened),
            surplus=surplus,
            shared=shared,
            reported=rank.reported,
        )
        score.cost = self._policy.cost(score)
        return score

    def place(self, prompt: Any, chosen: Score, *, approximate: bool, output_tokens: int) -> int:
        """Open a request; its number."""
        self._turn += 1
        now = self._clock()
        rank = next(one for one in self.ranks if (one.worker, one.dp_rank) == (chosen.worker, chosen.dp_rank))
        chain = self.chain(prompt, approximate=approximate)
        rank.last_chosen = self._turn
        shared = 0
        if rank.opened:
            (blocks,) = self._learned.depths(chain, [(rank.holder, next(iter(rank.opened.values())))])
            shared = blocks * BLOCK
        prefill = math.ceil(chosen.prefill)
        held = len(prompt) - shared + min(output_tokens, 2048) // 2
        rank.queued += prefill
        rank.held += held
        rank.opened[self._turn] = rank.prefilling[self._turn] = now
        self._learned.expire(now - self._settings.learned_ttl_s)
        self._learned.learn(chain, rank.holder, now, prefill + self._settings.request_tokens, self._age)
        self._mean_prompt += 0.05 * (len(prompt) - self._mean_prompt)
        self._mean_prefill += 0.05 * (prefill - self._mean_prefill)
        self._open[self._turn] = rank, prefill, held
        return self._turn

    def computed(self, number: int) -> None:
        rank, prefill, _ = self._open.get(number, (None, 0, 0))
        if rank is None or rank.prefilling.pop(number, None) is None:
            return
        rank.queued -= prefill
        work = prefill + self._settings.request_tokens
        older = work / (self._settings.memory_tokens * len(self.ranks))
        self._age += older
        for one in self.ranks:
            one.recent *= 0.5**older
        rank.recent += work

    def end(self, number: int) -> None:
        rank, prefill, held = self._open.pop(number, (None, 0, 0))
        if rank is None:
            return
        if rank.prefilling.pop(number, None) is not None:
            rank.queued -= prefill
        rank.held -= held
        del rank.opened[number]
