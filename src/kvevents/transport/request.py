"""A request to the replay socket under way."""

from dataclasses import dataclass

from kvevents.transport.snapshot_client import SnapshotDownload
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
        deadline: when it has failed, on the tracker's clock; answers move it, but for those of a probe.
        answered: whether the first answer has been judged.
        filled: whether an answer brought a number below the ceiling that was not known.
        brought: how many batches were new.
        probed: whether it began as a probe.
        overdue: a probe's answer should have been there; it still counts.
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
    probed: bool = False
    overdue: bool = False

    def __post_init__(self) -> None:
        self.probed = self.is_probe

    @property
    def detail(self) -> str:
        """What is being done, for people."""
        return f"asking the replay socket from {self.start}"

    @property
    def is_probe(self) -> bool:
        """Whether it only asks if something was lost; live batches need not wait for it."""
        return self.purpose is Reason.IDLE

    def note_new(self, sequence: int) -> None:
        """An answer brought a batch that was not known."""
        self.brought += 1
        self.filled |= self.ceiling is not None and sequence < self.ceiling


@dataclass(slots=True)
class SnapshotRequest:
    """A snapshot that is being fetched.

    Attributes:
        download: what has come of it.
        deadline: when something is to be done next: it has failed, or (`again`) is to be asked for again.
        gives_up: when waiting for the publisher to take it ends.
        again: the publisher is taking it.
    """

    download: SnapshotDownload
    deadline: float
    gives_up: float
    again: bool = False

    @property
    def purpose(self) -> Reason:
        """Why it was made."""
        return Reason.SNAPSHOT

    @property
    def detail(self) -> str:
        """What is being done, for people."""
        head = self.download.head
        return "asking for a snapshot" if head is None else f"fetching a snapshot of {head.size} bytes"

    @property
    def is_probe(self) -> bool:
        """Live batches wait for it."""
        return False
