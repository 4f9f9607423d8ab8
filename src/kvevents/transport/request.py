"""A replay request under way."""

from dataclasses import dataclass

from kvevents.transport.state import Reason


@dataclass(slots=True)
class ReplayRequest:
    """What was asked of the replay socket, and what its answer has shown so far.

    Attributes:
        purpose: why it was made.
        start: the first number asked for.
        checks: whether `start` is a batch that is known, so that its bytes tell the incarnation.
        ceiling: the highest number known to be published when it was made; None if nothing was missing.
        hole: the first numbers missing then: from, and the lowest above them that was held.
        deadline: when it has failed, on the tracker's clock; every answer moves it.
        answered: whether the first answer has been judged.
        filled: whether an answer brought a number below the ceiling that was not known.
        brought: how many batches were new.
    """

    purpose: Reason
    start: int
    checks: bool
    ceiling: int | None
    hole: tuple[int, int | None]
    deadline: float
    answered: bool = False
    filled: bool = False
    brought: int = 0

    @property
    def is_probe(self) -> bool:
        """Whether it only asks if something was lost; live batches need not wait for it."""
        return self.purpose is Reason.IDLE

    def note_new(self, sequence: int) -> None:
        """An answer brought a batch that was not known."""
        self.brought += 1
        self.filled |= self.ceiling is not None and sequence < self.ceiling
