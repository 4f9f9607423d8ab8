"""Event batches on their way from an engine to the router's index, in virtual time."""

import random

import msgspec

from kvevents.index import PrefixIndex
from kvevents.simulation.agenda import Agenda
from kvevents.transport import PublisherStats


class Travel(msgspec.Struct, frozen=True, kw_only=True):
    """How batches travel.

    Attributes:
        delay_s: virtual seconds from an engine's publishing to the router's index.
        loss: share of the batches that never arrive. There is no replay: after a gap the source is `degraded`.
    """

    delay_s: float = 0.02
    loss: float = 0.0


class DeliveryFigures(msgspec.Struct):
    """What travelled.

    Attributes:
        batches: messages published.
        lost: of them, never arrived.
        bytes: payload of all.
        events: events that arrived.
        blocks_stored: blocks that they stored.
        blocks_removed: blocks that they removed.
    """

    batches: int = 0
    lost: int = 0
    bytes: int = 0
    events: int = 0
    blocks_stored: int = 0
    blocks_removed: int = 0


class Delivery:
    """One engine's publisher: batches reach the index in order, late, or never.

    Args:
        agenda: virtual time.
        index: the router's.
        worker: whose batches these are.
        travel: how they travel.
        figures: where they are counted.
        dice: decides which are lost.
    """

    def __init__(
        self,
        agenda: Agenda,
        index: PrefixIndex,
        worker: str,
        *,
        travel: Travel,
        figures: DeliveryFigures,
        dice: random.Random,
    ) -> None:
        self._agenda = agenda
        self._index = index
        self._worker = worker
        self._travel = travel
        self._figures = figures
        self._dice = dice
        self._published = self._bytes = self._lost = 0
        self._expected = 0

    def publish(self, batch: bytes, /) -> int:
        """Send a batch on its way; its sequence number."""
        sequence = self._published
        self._published += 1
        self._bytes += len(batch)
        self._figures.batches += 1
        self._figures.bytes += len(batch)
        if self._travel.loss and self._dice.random() < self._travel.loss:
            self._lost += 1
            self._figures.lost += 1
        else:
            self._agenda.at(self._agenda.now() + self._travel.delay_s, lambda: self._arrive(sequence, batch))
        return sequence

    def stats(self) -> PublisherStats:
        """What was published and what was lost."""
        return PublisherStats(
            published=self._published,
            dropped=self._lost,
            replayed=0,
            replay_requests=0,
            malformed_requests=0,
            published_bytes=self._bytes,
            queued=0,
            last_sequence=self._published - 1 if self._published else None,
            snapshots=0,
            snapshot_failures=0,
            refused_consumers=0,
            failed=0,
        )

    def close(self) -> None:
        """What is under way arrives all the same."""

    def _arrive(self, sequence: int, batch: bytes) -> None:
        report = self._index.apply(self._worker, batch, seq=sequence)
        if sequence != self._expected:
            self._index.set_state(self._worker, report.dp_rank, "degraded")
        self._expected = sequence + 1
        self._figures.events += report.events
        self._figures.blocks_stored += report.stored
        self._figures.blocks_removed += report.removed
