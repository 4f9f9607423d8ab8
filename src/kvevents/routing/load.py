"""What each candidate has been given and has not finished, and what its engine says of itself."""

from collections.abc import Collection
from typing import NamedTuple


class Reported(NamedTuple):
    """What an engine said about its load, beyond what this router sent it."""

    running: int
    """Requests that it computes answers for."""
    waiting: int
    """Requests that wait for it."""
    foreign_running: int
    """Of those running, how many are not ours."""
    foreign_waiting: int
    """Of those waiting, how many are not ours."""
    foreign_tokens: int | None
    """Tokens in use that are not of our requests; None when it does not say."""
    at: float
    """When it said so, by the router's clock."""


class Load:
    """The work in flight on one rank of one worker, and how much it did of late.

    Attributes:
        queued: tokens still to compute, over all its requests.
        decode: of `held`, the tokens of requests whose answers are being produced.
        held: tokens of KV cache that its requests hold or will hold, those that they share once.
        requests: requests that have not ended.
        recent: tokens computed and requests answered (in tokens), older ones forgotten by and by.
        last_chosen: the turn in which it was last chosen, 0 for never.
        reported: what its engine said last; None when it never did.
    """

    __slots__ = ("decode", "held", "last_chosen", "opened", "prefilling", "queued", "recent", "reported", "requests")

    def __init__(self, *, recent: float = 0.0) -> None:
        self.queued = 0
        self.decode = 0
        self.held = 0
        self.requests = 0
        self.recent = recent
        self.last_chosen = 0
        self.reported: Reported | None = None
        self.opened: dict[int, float] = {}
        """When each open request was sent, oldest first."""
        self.prefilling: dict[int, float] = {}
        """When each request that still computes its prompt was sent, oldest first."""

    def copy(self) -> "Load":
        """The figures as they are now."""
        twin = Load(recent=self.recent)
        twin.queued, twin.decode, twin.held, twin.requests = self.queued, self.decode, self.held, self.requests
        twin.last_chosen, twin.reported = self.last_chosen, self.reported
        return twin

    def report(self, *, running: int, waiting: int, tokens: int | None, now: float) -> None:
        """Take note of an engine's own figures; what is ours of them is known better here."""
        ours_waiting = len(self.prefilling)
        self.reported = Reported(
            running,
            waiting,
            foreign_running=max(0, running + waiting - self.requests - max(0, waiting - ours_waiting)),
            foreign_waiting=max(0, waiting - ours_waiting),
            foreign_tokens=None if tokens is None else max(0, tokens - self.held),
            at=now,
        )


def mean_recent(loads: Collection[Load]) -> float:
    """What a newcomer starts with, so that it is neither flooded nor starved; 0 when it is the first."""
    return sum(load.recent for load in loads) / len(loads) if loads else 0.0
