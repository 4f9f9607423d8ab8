"""A request as vLLM's scheduler sees it."""

from array import array

from kvevents.engine.request import Request
from kvevents.hashing import HashChain


class Sequence:
    """A request, its blocks, and how far it is planned.

    Attributes:
        request: what clients see of it.
        chain: its whole pages, those that future outputs will fill included; only those of known tokens are used.
        blocks: what it holds, in its order (int64).
        published: how many of the blocks are published.
        planned: tokens that are computed or that a step in flight computes.
        awaited: outputs that steps in flight will bring; always 0 when scheduling is synchronous, where a step is
            planned when the one before has returned.
        in_flight: tokens of steps in flight.
        stale: of them, those of steps planned before it was last preempted.
    """

    __slots__ = ("awaited", "blocks", "chain", "in_flight", "planned", "published", "request", "stale")

    def __init__(self, request: Request, chain: HashChain) -> None:
        self.request = request
        self.chain = chain
        self.blocks = array("q")
        self.published = 0
        self.planned = 0
        self.awaited = 0
        self.in_flight = 0
        self.stale = 0

    @property
    def unplanned(self) -> int:
        """Tokens to compute yet, as far as they are known or awaited."""
        return self.request.known + self.awaited - self.planned

    @property
    def is_decoding(self) -> bool:
        """Whether all that is left to compute is the last output, which is known or awaited."""
        return self.unplanned == 1 and self.request.produced + self.awaited > 0

    @property
    def awaits_last(self) -> bool:
        """Whether a step in flight will bring its last output."""
        return self.awaited > 0 and self.request.produced + self.awaited >= self.request.output_length

    def forget(self) -> None:
        """It has given its blocks back, and starts from the beginning if it starts again."""
        self.blocks = array("q")
        self.published = self.planned = self.awaited = 0
        self.stale = self.in_flight
