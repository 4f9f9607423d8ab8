"""What was found at each hop, as values."""

import enum
from collections.abc import Sequence

import msgspec


class Hop(enum.StrEnum):
    """The hops, in their order."""

    REACHABLE = "reachable"
    EVENTS = "events"
    SOCKETS = "sockets"
    ANNOUNCED = "announced"
    TOPIC = "topic"
    BLOCK_SIZE = "block-size"
    HASHES = "hashes"
    REPLAY = "replay"
    CACHED = "cached"
    ADAPTER = "adapter"
    TOKENIZER = "tokenizer"
    ROUTER = "router"


class Verdict(enum.StrEnum):
    """How it stands at a hop.

    `fine`. `cause`: something is wrong that keeps hits away. `note`: it works, and could be better. `skipped`: it could
    not be looked at, or nobody asked.
    """

    FINE = "fine"
    CAUSE = "cause"
    NOTE = "note"
    SKIPPED = "skipped"


class Finding(msgspec.Struct, frozen=True):
    """What was found at one hop.

    Attributes:
        hop: where.
        verdict: how it stands.
        found: what was seen.
        fix: what to do; empty where nothing is.
    """

    hop: Hop
    verdict: Verdict
    found: str
    fix: str = ""


class Diagnosis(msgspec.Struct, frozen=True):
    """Everything that was found.

    Attributes:
        url: the engine.
        findings: in the order of the road.
        seconds: how long it took.
    """

    url: str
    findings: Sequence[Finding]
    seconds: float

    @property
    def causes(self) -> Sequence[Finding]:
        """What keeps hits away."""
        return [finding for finding in self.findings if finding.verdict is Verdict.CAUSE]
