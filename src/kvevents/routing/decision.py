"""What a router answers, and the figures it went by."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

JudgedBy: TypeAlias = Literal["events", "learned"]
"""Whether a worker's own events say what it holds, or what was sent to it lets it be guessed."""

SessionChoice: TypeAlias = Literal["none", "new", "kept", "moved"]
"""What a request's session did: there is none, it is seen first, its worker was kept, or given up."""


class Score(msgspec.Struct):
    """One candidate for one prompt: what it holds, what it has to do, what it would cost.

    Attributes:
        worker: the worker's id.
        dp_rank: the rank within the worker.
        judged_by: what `usable` goes by.
        usable: leading blocks of the prompt that the engine will reuse, as far as known; never the last token's.
        indexed: the same by the worker's events alone; None where there are none.
        pending: blocks beyond those that are on their way: of prompts sent there a moment ago.
        tiers: of the usable blocks, those whose fastest tier is each; empty where it is not known.
        state: of the worker's event source; None when it has none, or nothing was said of it.
        prefill: tokens of this prompt that would have to be computed; what comes from slower tiers counts in part.
        queued: tokens that requests sent there before still have to compute, those of others as its engine reports.
        held: tokens of KV cache that requests hold or will hold there, likewise.
        requests: requests sent there that have not ended.
        surplus: tokens of work done there of late, above the candidate with the least.
        shared: of that, at most so many were for prompts that begin as this one does, as far as it is held there.
        reported: requests that its engine said are running and waiting; None when it never said.
        cost: what the policy minimises; in tokens for `kv` and `approx`, in the policy's own unit elsewhere.
    """

    worker: str
    dp_rank: int
    judged_by: JudgedBy = "events"
    usable: int = 0
    indexed: int | None = None
    pending: int = 0
    tiers: Mapping[str, int] = {}
    state: str | None = None
    prefill: float = 0.0
    queued: float = 0.0
    held: float = 0.0
    requests: int = 0
    surplus: float = 0.0
    shared: float = 0.0
    reported: tuple[int, int] | None = None
    cost: float = 0.0

    @property
    def balance(self) -> float:
        """Tokens that this prompt has to pay for the candidate's being busier than the least busy one."""
        return min(self.shared, self.surplus)


class Grounds(Protocol):
    """What a choice went by. Made when somebody asks: few do."""

    @property
    def chosen(self) -> Score:
        """The candidate that was chosen."""

    @property
    def scores(self) -> Sequence[Score]:
        """One per candidate, the chosen one first, then by cost."""

    @property
    def reason(self) -> str:
        """One sentence for people."""

    @property
    def weights(self) -> Mapping[str, float]:
        """What one unit of a figure of the scores adds to their cost, by the figure's name."""


class Decision(msgspec.Struct, frozen=True):
    """Where one request goes. Hand it back to the router as the request proceeds.

    Attributes:
        worker: the chosen worker's id.
        dp_rank: the chosen rank.
        usable: leading blocks of the prompt that the engine is expected to reuse; never the last token's.
        judged_by: what `usable` goes by, of the worker itself.
        policy: name of the policy that chose.
        prompt_tokens: length of the prompt.
        cached_tokens: tokens the engine is expected to report as cached (it always computes the last one).
        best_cached_tokens: the same for the candidate that holds most of the prompt.
        id: unique within the router.
        indexed: leading blocks of the prompt that the worker holds by its events alone; None where there are none.
        block_size: tokens in a block.
        approximate: the prompt's ids only stand for token ids, so nothing was asked of the index.
        grounds: what the choice went by.
        excluded: workers that were no candidates, and why.
        session: what the request's session did.
        role: the part of the request that the worker does; None for all of it.
        prefill: where the prompt is computed, in a fleet with roles; None elsewhere.
    """

    worker: str
    dp_rank: int
    usable: int
    judged_by: JudgedBy
    policy: str
    prompt_tokens: int
    cached_tokens: int
    best_cached_tokens: int
    id: int
    indexed: int | None
    grounds: Grounds
    block_size: int = 1
    approximate: bool = False
    excluded: Mapping[str, str] = {}
    session: SessionChoice = "none"
    role: Literal["prefill", "decode"] | None = None
    prefill: "Decision | None" = None

    @property
    def scores(self) -> Sequence[Score]:
        """One per candidate, the chosen one first, then by cost."""
        return self.grounds.scores

    @property
    def reason(self) -> str:
        """One sentence for people."""
        return self.grounds.reason

    @property
    def weights(self) -> Mapping[str, float]:
        """What one unit of a figure of the scores adds to their cost, by the figure's name."""
        return self.grounds.weights

    @property
    def indexed_tokens(self) -> int | None:
        """Tokens that the chosen worker should report as cached by its events; None when it has none."""
        indexed = (self.prefill or self).indexed
        return None if indexed is None or self.approximate else cached(indexed, self.prompt_tokens, self.block_size)

    def document(self) -> dict[str, Any]:
        """All of it but the id, ready for JSON."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name not in _INWARD}
        prefill = None if self.prefill is None else self.prefill.document()
        return {
            **fields,
            "scores": list(self.scores),
            "reason": self.reason,
            "weights": dict(self.weights),
            "prefill": prefill,
        }

    def explain(self) -> dict[str, Any]:
        """Everything the choice went by, ready for JSON; no tokens, no salts, no sessions."""
        return {
            "worker": self.worker,
            "dp_rank": self.dp_rank,
            "role": self.role,
            "policy": self.policy,
            "reason": self.reason,
            "prompt_tokens": self.prompt_tokens,
            "block_size": self.block_size,
            "approximate": self.approximate,
            "expected_cached_tokens": self.cached_tokens,
            "best_cached_tokens": self.best_cached_tokens,
            "session": self.session,
            "candidates": [self._candidate(score, place) for place, score in enumerate(self.scores)],
            "excluded": [{"worker": worker, "why": why} for worker, why in self.excluded.items()],
            "prefill": None if self.prefill is None else self.prefill.explain(),
        }

    def _candidate(self, score: Score, place: int) -> dict[str, Any]:
        running, waiting = score.reported or (None, None)
        terms = {name: weight * getattr(score, name) for name, weight in self.weights.items()}
        return {
            "worker": score.worker,
            "dp_rank": score.dp_rank,
            "chosen": place == 0,
            "judged_by": score.judged_by,
            "source_state": score.state,
            "blocks": {
                "usable": score.usable,
                "indexed": score.indexed,
                "pending": score.pending,
                "tiers": dict(score.tiers),
            },
            "tokens": {
                "expected_cached": cached(score.usable, self.prompt_tokens, self.block_size),
                "to_compute": round(score.prefill),
            },
            "load": {
                "requests": score.requests,
                "queued_tokens": round(score.queued),
                "held_tokens": round(score.held),
                "surplus_tokens": round(score.surplus),
                "reported_running": running,
                "reported_waiting": waiting,
            },
            "cost": round(score.cost, 3),
            "terms": {name: round(value, 3) for name, value in terms.items()},
        }


_INWARD = {"id", "grounds", "indexed", "judged_by"}
"""Fields that are no part of a document: the scores have them."""


def cached(usable: int, prompt_tokens: int, block_size: int) -> int:
    """Tokens an engine reports as cached: it always computes the prompt's last one itself."""
    return max(0, min(usable, (prompt_tokens - 1) // block_size)) * block_size
