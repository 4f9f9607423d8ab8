"""What each candidate has been given and has not finished, and what its engine says of itself."""

from collections.abc import Mapping
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


class Load(NamedTuple):
    """The work in flight on one rank of one worker at some moment, and how much it did of late."""

    queued: int
    """Tokens still to compute, over all its requests."""
    decode: int
    """Of `held`, the tokens of requests whose answers are being produced."""
    held: int
    """Tokens of KV cache that its requests hold or will hold, those that they share once."""
    requests: int
    """Requests that have not ended."""
    recent: float
    """Tokens computed and requests answered (in tokens), older ones forgotten by and by."""
    last_chosen: int
    """The turn in which it was last chosen, 0 for never."""
    reported: Reported | None
    """What its engine said last; None when it never did."""
    opened: Mapping[int, float]
    """When each open request was sent, by the decision's id, oldest first."""
    prefilling: Mapping[int, float]
    """When each request that still computes its prompt was sent, oldest first."""
