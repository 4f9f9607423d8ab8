"""What workers are believed to hold by what was sent to them: for engines without events, and until events come."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import msgspec

from kvevents._core import learned as core
from kvevents._core.learned import PromptChain

DEFAULT_MAX_BLOCKS = 524_288


class LearnedIndex:
    """Leading blocks of prompts by worker, learned from where prompts were sent. Thread-safe.

    What was used last stays longest, and a block never outlives the blocks above it, as in an engine's cache.

    Args:
        block_size: tokens in a block.
        ttl_s: what was not used for so long counts no more.
        max_blocks: blocks remembered over all workers; the least recently used are forgotten first.
        clock: seconds, never falling.

    Raises:
        ConfigError: a block size below 1 or a bound below 0.

    Attributes:
        core: the index itself, which numbers the holders, for `Table`.
    """

    def __init__(
        self,
        block_size: int,
        *,
        ttl_s: float = float("inf"),
        max_blocks: int = DEFAULT_MAX_BLOCKS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = core.LearnedIndex(block_size, max_blocks)
        self._ttl_s = ttl_s
        self._clock = clock
        self._numbers = itertools.count()
        self._holders: dict[tuple[str, int], int] = {}

    def __len__(self) -> int:
        """Blocks remembered over all workers."""
        return len(self.core)

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.core.block_size

    @property
    def evicted(self) -> int:
        """Blocks forgotten for want of room since the start."""
        return self.core.evicted

    def learn(
        self,
        worker: str,
        dp_rank: int,
        tokens: Any,
        *,
        lora_name: str | None = None,
        lora_id: int | None = None,
        cache_salt: str | None = None,
        extra_keys: Any = None,
        approximate: bool = False,
    ) -> None:
        """A prompt went to a rank of a worker, which will hold its whole blocks."""
        chain = self.chain(tokens, lora_name, lora_id, cache_salt, extra_keys, approximate=approximate)
        now = self._clock()
        self.core.expire(now - self._ttl_s)
        self.core.learn(chain, self.holder(worker, dp_rank), now, 0.0, 0.0)

    def match(
        self,
        tokens: Any,
        *,
        lora_name: str | None = None,
        lora_id: int | None = None,
        cache_salt: str | None = None,
        extra_keys: Any = None,
        approximate: bool = False,
    ) -> dict[tuple[str, int], int]:
        """Leading blocks that each rank of each worker is believed to hold; those that hold none are left out."""
        chain = self.chain(tokens, lora_name, lora_id, cache_salt, extra_keys, approximate=approximate)
        since = self.oldest
        holders = list(self._holders.items())
        depths = self.core.depths(chain, [(number, since) for _, number in holders])
        return {who: depth for (who, _), depth in zip(holders, depths, strict=True) if depth}

    def meet(
        self,
        worker: str,
        dp_rank: int,
        tokens: Any,
        *,
        lora_name: str | None = None,
        cache_salt: str | None = None,
        extra_keys: Any = None,
        approximate: bool = False,
    ) -> int:
        """Leading blocks of a prompt that a rank of a worker is believed to hold; then `learn` it."""
        extra = None if extra_keys is None else msgspec.msgpack.encode(extra_keys)
        holder, now = self.holder(worker, dp_rank), self._clock()
        return self.core.meet(tokens, lora_name, None, cache_salt, extra, approximate, holder, now, now - self._ttl_s)

    def forget(self, worker: str) -> None:
        """Forget what a worker holds: what answers there now may be another engine."""
        for who, number in list(self._holders.items()):
            if who[0] == worker:
                self.core.forget(number)

    def remove(self, worker: str) -> None:
        """Forget a worker that left."""
        self.forget(worker)
        for who in [who for who in list(self._holders) if who[0] == worker]:
            del self._holders[who]

    def held(self, worker: str, dp_rank: int) -> int:
        """Blocks that a rank of a worker is believed to hold."""
        number = self._holders.get((worker, dp_rank))
        return 0 if number is None else self.core.held(number)

    # What follows spares a router to hash a prompt twice.

    def chain(
        self,
        tokens: Any,
        lora_name: str | None,
        lora_id: int | None,
        cache_salt: str | None,
        extra_keys: Any,
        *,
        approximate: bool,
    ) -> PromptChain:
        """The whole blocks of a prompt.

        Args:
            tokens: the token ids.
            lora_name: adapter, part of the blocks' identity.
            lora_id: the adapter's number.
            cache_salt: salt, part of the blocks' identity.
            extra_keys: further identity of blocks.
            approximate: the ids are no token ids but stand for them: apart from all that are.
        """
        extra = None if extra_keys is None else msgspec.msgpack.encode(extra_keys)
        return self.core.chain(tokens, lora_name, lora_id, cache_salt, extra, approximate)

    def holder(self, worker: str, dp_rank: int) -> int:
        """The number that stands for a rank of a worker until it is removed."""
        number = self._holders.get((worker, dp_rank))
        return self._holders.setdefault((worker, dp_rank), next(self._numbers)) if number is None else number

    @property
    def oldest(self) -> float:
        """What was last used before this moment counts no more."""
        return self._clock() - self._ttl_s
