"""What is seen at one moment, and what has moved since the moment before."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

TIERS = ("GPU", "CPU_PINNED", "DISK", "EXTERNAL")


class Row(msgspec.Struct, frozen=True):
    """One rank of one worker.

    Attributes:
        worker: its id.
        dp_rank: the rank; 0 where nobody names one.
        state: of its events; of a router's worker also `down`, `draining`, `blind`.
        reason: why, for people.
        tiers: blocks held, by tier.
        events: applied so far.
        blocks: stored and removed so far.
        gaps: times numbers were skipped.
        missing: numbers given up for lost.
        last_sequence: the last number applied; None if there was none.
    """

    worker: str
    dp_rank: int
    state: str
    reason: str
    tiers: Mapping[str, int] = {}
    events: int = 0
    blocks: int = 0
    gaps: int = 0
    missing: int = 0
    last_sequence: int | None = None


class Picture(msgspec.Struct, frozen=True):
    """All that is known at one moment.

    Attributes:
        at: seconds, of a clock that never falls.
        rows: every rank.
        news: what happened since the look before, a line each.
    """

    at: float
    rows: Sequence[Row]
    news: Sequence[str] = ()


class Feed(Protocol):
    """Where pictures come from."""

    @property
    def name(self) -> str:
        """What is looked at."""

    def look(self) -> Picture:
        """The picture of this moment; may wait for the other side.

        Raises:
            KVEventsError: it cannot be had just now.
        """

    def close(self) -> None:
        """Let go of what is looked at."""


class Shown(msgspec.Struct, frozen=True):
    """A row with its rates.

    Attributes:
        row: as it is.
        events_per_s: events.
        blocks_per_s: blocks stored and removed.
        blocks_per_event: of the last interval, or if nothing came in it, of all that came; None if nothing ever did.
    """

    row: Row
    events_per_s: float
    blocks_per_s: float
    blocks_per_event: float | None


class Trend:
    """Remembers the picture before, for rates."""

    def __init__(self) -> None:
        self._before: Picture | None = None

    def of(self, picture: Picture) -> list[Shown]:
        """The rows of a picture with what moved since the one before. Counts that fell have begun anew."""
        before = {} if self._before is None else {(row.worker, row.dp_rank): row for row in self._before.rows}
        seconds = 0.0 if self._before is None else picture.at - self._before.at
        self._before = picture
        return [_shown(row, before.get((row.worker, row.dp_rank)), seconds) for row in picture.rows]


def state_news(rows: Sequence[Row], known: dict[tuple[str, int], Row]) -> list[str]:
    """What changed in states and losses since the rows that are known, which become these."""
    news = []
    for row in rows:
        before = known.get((row.worker, row.dp_rank))
        name = f"{row.worker}/{row.dp_rank}"
        if before is None or before.state != row.state:
            news.append(f"{name} is {row.state}" + (f": {row.reason}" if row.reason else ""))
        if before is not None and row.missing > before.missing:
            news.append(f"{name} lost {row.missing - before.missing:,} batches for good")
        elif before is not None and row.gaps > before.gaps:
            news.append(f"{name} had a gap in its stream")
    current = {(row.worker, row.dp_rank): row for row in rows}
    news += [f"{worker}/{rank} has gone" for worker, rank in known.keys() - current.keys()]
    known.clear()
    known.update(current)
    return news


def _shown(row: Row, before: Row | None, seconds: float) -> Shown:
    events, blocks = (
        (row.events, row.blocks) if before is None else (row.events - before.events, row.blocks - before.blocks)
    )
    if events < 0 or blocks < 0:
        events, blocks = row.events, row.blocks
    moved = before is not None and seconds > 0
    part, whole = (blocks, events) if moved and events else (row.blocks, row.events)
    return Shown(
        row,
        events_per_s=events / seconds if moved else 0.0,
        blocks_per_s=blocks / seconds if moved else 0.0,
        blocks_per_event=part / whole if whole else None,
    )
