"""What each candidate has been given and has not finished."""

from collections.abc import Collection

MEMORY_TOKENS = 250_000
"""Recent work is half forgotten after this many computed tokens per candidate: about twenty long prompts."""


class Load:
    """The work in flight on one rank of one worker, and how much it computed of late.

    Attributes:
        queued: tokens still to compute, over all its requests.
        decode: tokens of the prompts whose answers are being produced.
        requests: requests that have not ended.
        recent: tokens computed, older ones forgotten by and by.
        last_chosen: the turn in which it was last chosen, 0 for never.
    """

    __slots__ = ("decode", "last_chosen", "queued", "recent", "requests")

    def __init__(self, *, recent: float = 0.0) -> None:
        self.queued = 0
        self.decode = 0
        self.requests = 0
        self.recent = recent
        self.last_chosen = 0

    def copy(self) -> "Load":
        """The figures as they are now."""
        twin = Load(recent=self.recent)
        twin.queued, twin.decode, twin.requests = self.queued, self.decode, self.requests
        twin.last_chosen = self.last_chosen
        return twin


class InFlight:
    """One open request: what its end has to take back."""

    __slots__ = ("load", "prefill", "prefilled", "prompt_tokens")

    def __init__(self, load: Load, *, prefill: int, prompt_tokens: int) -> None:
        self.load = load
        self.prefill = prefill
        self.prompt_tokens = prompt_tokens
        self.prefilled = False
        load.queued += prefill
        load.requests += 1

    def prefill_done(self) -> None:
        """Move the request from computing its prompt to producing its answer."""
        if not self.prefilled:
            self.prefilled = True
            self.load.queued -= self.prefill
            self.load.decode += self.prompt_tokens

    def end(self) -> None:
        """Take the request off its load."""
        if self.prefilled:
            self.load.decode -= self.prompt_tokens
        else:
            self.load.queued -= self.prefill
        self.load.requests -= 1


def forget(loads: Collection[Load], *, computed: int) -> None:
    """Let recent work fade by as much as `computed` new tokens make it older."""
    factor = 0.5 ** (computed / (MEMORY_TOKENS * len(loads)))
    for load in loads:
        load.recent *= factor


def mean_recent(loads: Collection[Load]) -> float:
    """What a newcomer starts with, so that it is neither flooded nor starved; 0 when it is the first."""
    return sum(load.recent for load in loads) / len(loads) if loads else 0.0
