"""What is known of an engine on the way, and the prompts that it is sent."""

import secrets
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvevents.doctor.engine import EngineClient
from kvevents.doctor.expectations import Expectations
from kvevents.doctor.report import Finding, Hop, Verdict
from kvevents.doctor.router import RouterClient
from kvevents.events import BlockStored
from kvevents.transport import Source
from kvevents.transport.http_fetch import Address

_BLOCKS = 3
_LEAST_TOKENS = 48
"""Fewer would be too short to tell a prompt by where a block is a token."""

_LARGEST_ID = 30_000
"""Below the vocabulary of every model that is served; above what a byte can be, so that no text is hit by chance."""

_SMALLEST_ID = 1_000


@dataclass
class Visit:
    """One examination.

    Attributes:
        url: the engine's base URL.
        beliefs: what whoever asks believes.
        engine: sends it requests.
        findings: so far.
        sources: its sockets, once they are known.
        told_block_size: tokens in a block, as the engine says of itself.
        model: what requests name.
        probe: the prompt that was sent.
        announced: how the engine announced it.
        adapter_probe: the prompt that was sent for the adapter.
    """

    url: str
    beliefs: Expectations
    engine: EngineClient
    router: RouterClient | None
    findings: list[Finding] = field(default_factory=list)
    sources: Sequence[Source] = ()
    told_block_size: int | None = None
    model: str | None = None
    probe: Sequence[int] = ()
    announced: BlockStored | None = None
    adapter_probe: Sequence[int] = ()

    @property
    def worker(self) -> str:
        """The engine's name, unless somebody gave it another."""
        return Address.parse(self.url).address

    @property
    def block_size(self) -> int:
        """Tokens in a block, as announced, else as told."""
        return self.announced.block_size if self.announced is not None else self.told_block_size or 64

    def note(self, hop: Hop, verdict: Verdict, found: str, fix: str = "") -> bool:
        """Write down what was found; whether the road goes on."""
        self.findings.append(Finding(hop, verdict, found, fix))
        return verdict is not Verdict.CAUSE

    def fine(self, hop: Hop, found: str) -> bool:
        """All is well at a hop."""
        return self.note(hop, Verdict.FINE, found)

    def cause(self, hop: Hop, found: str, fix: str) -> bool:
        """Something is wrong at a hop."""
        return self.note(hop, Verdict.CAUSE, found, fix)

    def new_prompt(self) -> "array[int]":
        """Token ids that no cache has: whole blocks and one more, so that every block can be found cached."""
        blocks = max(_BLOCKS, -(-_LEAST_TOKENS // self.block_size))
        count = blocks * self.block_size + 1
        return array("q", (_SMALLEST_ID + secrets.randbelow(_LARGEST_ID - _SMALLEST_ID) for _ in range(count)))
