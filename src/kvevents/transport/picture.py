"""What has been applied of one source, and why that may not be all."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kvevents.transport.held import RecentBatches
from kvevents.transport.state import Fault, Reason, SourceCounters


class Verdict(NamedTuple):
    """What became of a batch.

    Attributes:
        fault: what could not be applied; None if everything was.
        cleared: the batch emptied the source, or the rank of it that the batch names, so that nothing from before it is
            missing there any more.
        rank: the rank that was emptied.
        ranks: all that batches of the source have named so far.
    """

    fault: Fault | None = None
    cleared: bool = False
    rank: int | None = None
    ranks: frozenset[int | None] = frozenset()


FINE = Verdict()
"""Applied as it should be; what nearly every batch gets."""


class Position(NamedTuple):
    """How far a source has been followed.

    Attributes:
        sequence: the number of its last batch.
        digest: of that batch's bytes (`digest_of`), by which the source's life is known.
    """

    sequence: int
    digest: bytes


class Restored(NamedTuple):
    """What became of a snapshot.

    Attributes:
        failure: why it could not be put in place, for people. None if it could.
        fault: what of it could not be used.
        is_untouched: after a failure: the source holds what it held; else it holds nothing.
    """

    failure: str | None = None
    fault: Fault | None = None
    is_untouched: bool = False


class Effects(Protocol):
    """What the sequencing does to the world; none of it raises."""

    def apply(self, sequence: int, payload: bytes, /) -> Verdict:
        """Hands one batch on."""

    def apply_run(self, batches: Sequence[tuple[int, bytes]], /) -> tuple[int, Verdict]:
        """Hands batches on, (sequence, payload), up to the first of which something else than `FINE` became.

        Returns:
            How many, at least one, and what became of the last of them.
        """

    def clear(self) -> None:
        """Drops everything that the source holds."""

    def restore(self, parts: Sequence[bytes | memoryview], sequence: int | None, /) -> Restored:
        """Lets the source hold what a snapshot says, and nothing else."""

    def ask(self, start: int, /) -> None:
        """Asks the replay socket from `start` on; answers to earlier requests no longer count."""

    def ask_snapshot(self, request: bytes, /) -> None:
        """Sends a frame that asks the replay socket for a snapshot or a part of one."""


class Picture:
    """The batches of one incarnation that were applied, each once and in order.

    Attributes:
        last: the last sequence number applied; None before the first.
        fault: why the picture is incomplete; None if nothing is known to be missing.
    """

    def __init__(self, effects: Effects, counters: SourceCounters, window: int) -> None:
        self.last: int | None = None
        self.fault: Fault | None = None
        self._effects = effects
        self._count = counters
        self._recent = RecentBatches(window)
        self._cleared: set[int | None] = set()  # ranks that were emptied since the last fault

    @property
    def next(self) -> int:
        """The number that continues the picture."""
        return 0 if self.last is None else self.last + 1

    def take(self, sequence: int, payload: bytes, *, replayed: bool) -> None:
        """Applies a batch; everything between the last one and it counts as given up."""
        self.last = sequence
        self._recent.add(sequence, payload)
        self._count.applied += 1
        self._count.replayed += replayed
        self._heed(self._effects.apply(sequence, payload))

    def take_run(self, batches: Sequence[tuple[int, bytes]]) -> int:
        """Applies batches that follow each other, up to the first that changes what is known; how many."""
        taken, verdict = self._effects.apply_run(batches)
        applied = batches[:taken]
        self.last = applied[-1][0]
        self._recent.extend(applied)
        self._count.applied += taken
        self._heed(verdict)
        return taken

    def _heed(self, verdict: Verdict) -> None:
        if verdict.cleared and self.fault is not None:
            self._cleared.add(verdict.rank)
            if self._cleared >= verdict.ranks:
                self.fault = None
        if verdict.fault is not None:
            self.blame(verdict.fault)

    def forget(self) -> None:
        """Begins anew, with nothing held: the next batch comes from another incarnation or from a full replay."""
        self._count.clears += 1
        self._effects.clear()
        self.last = self.fault = None
        self._recent.clear()

    def adopt(self, sequence: int | None, digest: bytes | None, fault: Fault | None) -> None:
        """Goes on from a snapshot, which is in place: `sequence` is the last number that it covers."""
        self.last = sequence
        self.fault = fault
        self._recent.clear()
        if sequence is not None and digest is not None:
            self._recent.pledge(sequence, digest)

    def blame(self, fault: Fault) -> None:
        """Notes why the picture is incomplete; the first reason stays, for it is the root of later ones."""
        self._cleared.clear()
        if self.fault is None:
            self.fault = fault
        elif not fault.mendable:
            self.fault = self.fault._replace(mendable=False)

    def same(self, sequence: int, payload: bytes) -> bool | None:
        """Whether the batch applied under `sequence` had these bytes; None if that is not remembered."""
        return self._recent.same(sequence, payload)

    def skipped(self, sequence: int) -> bool:
        """Whether `sequence`, of which no bytes are remembered, is recent enough to have been given up."""
        return sequence > 0 and self._recent.covers(sequence)


def starts_late(first: int, asked: int) -> Fault:
    """The replay buffer begins at `first`, above what was asked for."""
    return Fault(
        Reason.REPLAY_STARTS_LATE,
        f"asked from sequence {asked}, the replay buffer starts at {first}: earlier blocks are unknown;"
        " a larger buffer_steps in the engine helps",
        mendable=False,
    )
