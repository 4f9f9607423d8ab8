"""What a router answers, and the figures it went by."""

from collections.abc import Sequence

import msgspec


class Score(msgspec.Struct):
    """One candidate for one prompt: what it holds, what it has to do, what it would cost.

    Attributes:
        worker: the worker's id.
        dp_rank: the rank within the worker.
        usable: leading blocks of the prompt that the engine will reuse, as the index knows it; never the last token's.
        state: of the worker's event source as the index knows it; None when nothing of the prompt is held there.
        prefill: tokens of this prompt that would have to be computed.
        queued: tokens that requests sent there before still have to compute.
        decode: tokens of the prompts whose answers are being produced there.
        requests: requests sent there that have not ended.
        surplus: tokens computed there of late, above the candidate with the least.
        cost: what the policy minimises; in tokens for `kv`, in the policy's own unit elsewhere.
    """

    worker: str
    dp_rank: int
    usable: int
    state: str | None
    prefill: int
    queued: int
    decode: int
    requests: int
    surplus: int
    cost: float = 0.0


class Decision(msgspec.Struct, frozen=True):
    """Where one request goes. Hand it back to the router as the request proceeds.

    Attributes:
        worker: the chosen worker's id.
        dp_rank: the chosen rank.
        usable: leading blocks of the prompt that the engine is expected to reuse; never the last token's.
        scores: one per candidate, the chosen one first, then by cost.
        reason: one sentence for people.
        policy: name of the policy that chose.
        prompt_tokens: length of the prompt.
        cached_tokens: tokens the engine is expected to report as cached (it always computes the last one).
        best_cached_tokens: the same for the candidate that holds most of the prompt.
        id: unique within the router.
    """

    worker: str
    dp_rank: int
    usable: int
    scores: Sequence[Score]
    reason: str
    policy: str
    prompt_tokens: int
    cached_tokens: int
    best_cached_tokens: int
    id: int
