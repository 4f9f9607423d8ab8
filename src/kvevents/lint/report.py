"""What a check found, as values."""

from collections.abc import Sequence

import msgspec

from kvevents.lint.codes import Severity


class Place(msgspec.Struct, frozen=True):
    """Where something was seen first.

    Attributes:
        batch: which batch of the stream, from 0.
        sequence: the batch's number, if it has one.
        time: its arrival, unix seconds; 0 where nobody knows.
        offset: where the event begins in the payload; None for what concerns no event.
        block: one block that is concerned, as 16 hex digits.
    """

    batch: int
    sequence: int | None = None
    time: float = 0.0
    offset: int | None = None
    block: str | None = None


class Finding(msgspec.Struct, frozen=True):
    """All of one code in one stream.

    Attributes:
        code: stable; `CODES` explains it.
        severity: `error`, `warning` or `info`.
        worker: whose stream.
        dp_rank: of which rank.
        title: what was seen.
        detail: the figures of the first, or of all.
        count: how often.
        blocks: blocks that are concerned, over all.
        first: where first.
        remedy: what to do.
    """

    code: str
    severity: Severity
    worker: str
    dp_rank: int | None
    title: str
    detail: str
    count: int
    blocks: int
    first: Place
    remedy: str


class StreamFacts(msgspec.Struct, frozen=True):
    """What a stream is.

    Attributes:
        worker: whose.
        dp_rank: of which rank.
        batches: its batches.
        events: their events.
        stored_blocks: blocks in stores.
        removed_blocks: blocks in removals.
        clears: clears.
        held_blocks: blocks held on the GPU at the end.
        most_held_blocks: and at most.
        seconds: from the first to the last batch, by the publisher's clock.
        dialect: how its events are written, by the first batches.
        engine: which engines, and versions of them, write so.
        scheme: which scheme its hashes follow, None if that was not found.
        hash_seed: and with which seed.
        saving: share of the bytes that merging would save, 0 to 1; None if it was not measured.
        forgotten_blocks: blocks that there was no room to remember: what concerns unknown blocks is left out then.
    """

    worker: str
    dp_rank: int | None
    batches: int
    events: int
    stored_blocks: int
    removed_blocks: int
    clears: int
    held_blocks: int
    most_held_blocks: int
    seconds: float
    dialect: str | None
    engine: str | None
    scheme: str | None
    hash_seed: str | None
    saving: float | None
    forgotten_blocks: int


class LintReport(msgspec.Struct, frozen=True):
    """The findings, the worst first, and what was read.

    Attributes:
        findings: one for each code and stream.
        streams: one for each worker and rank.
    """

    findings: Sequence[Finding]
    streams: Sequence[StreamFacts]

    def at_least(self, severity: Severity) -> Sequence[Finding]:
        """The findings that are so bad or worse."""
        return [finding for finding in self.findings if finding.severity.rank >= severity.rank]
