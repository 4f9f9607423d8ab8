"""`kvevents._core.learned`: see `kvevents.routing.approx`, which numbers the holders and keeps the time."""

from collections.abc import Sequence
from typing import TypeAlias, final

from _typeshed import ReadableBuffer

_Tokens: TypeAlias = Sequence[int] | ReadableBuffer

@final
class PromptChain:
    """A prompt's whole blocks, as content hashes."""

    def __len__(self) -> int: ...

@final
class LearnedIndex:
    """Blocks that holders are believed to hold; the least recently used are forgotten first."""

    def __new__(cls, block_size: int, max_blocks: int) -> LearnedIndex: ...
    @property
    def block_size(self) -> int: ...
    @property
    def evicted(self) -> int:
        """Blocks forgotten for want of room since the start."""
    def __len__(self) -> int: ...
    def chain(
        self,
        tokens: _Tokens,
        lora_name: str | None,
        lora_id: int | None,
        cache_salt: str | None,
        extra_keys: bytes | None,
        apart: bool,
    ) -> PromptChain:
        """The blocks of a prompt; `apart` from all others where the ids are no token ids."""
    def meet(
        self,
        tokens: _Tokens,
        lora_name: str | None,
        lora_id: int | None,
        cache_salt: str | None,
        extra_keys: bytes | None,
        apart: bool,
        holder: int,
        now: float,
        since: float,
    ) -> int:
        """Leading blocks that a holder had of a prompt, all of them used since then; from now on it has all."""
    def depths(self, chain: PromptChain, holders: list[tuple[int, float]]) -> list[int]:
        """Leading blocks that each (holder, since) has, all of them used since then."""
    def works(self, chain: PromptChain, holders: list[tuple[int, int]], clock: float) -> list[float]:
        """The work of each (holder, depth) for prompts that begin with so many blocks of this one, at least one."""
    def learn(self, chain: PromptChain, holder: int, now: float, work: float, clock: float) -> None:
        """The prompt went to a holder, and costs it so much work."""
    def expire(self, before: float) -> None:
        """Forget what was last used before then."""
    def forget(self, holder: int) -> None:
        """Forget what a holder has."""
    def held(self, holder: int) -> int:
        """Blocks of a holder."""
