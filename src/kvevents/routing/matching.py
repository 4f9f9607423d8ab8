"""What the router needs of an index."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kvevents._core.index import Found
from kvevents.index import PrefixIndex
from kvevents.index.answers import TIERS


class Match(Protocol):
    """What the router reads of `kvevents.index.WorkerMatch`."""

    @property
    def worker(self) -> str: ...
    @property
    def dp_rank(self) -> int | None: ...
    @property
    def usable(self) -> int: ...
    @property
    def fastest(self) -> Mapping[str, int]: ...
    @property
    def state(self) -> str: ...


class PrefixMatcher(Protocol):
    """What the router needs of an index; `kvevents.index.PrefixIndex` is one."""

    @property
    def block_size(self) -> int: ...

    def match(
        self,
        tokens: Any,
        *,
        lora_name: str | None = None,
        lora_id: int | None = None,
        cache_salt: str | None = None,
        extra_keys: Any = None,
    ) -> Sequence[Match]: ...


def find(
    index: PrefixMatcher,
    tokens: Any,
    lora_name: str | None,
    lora_id: int | None,
    cache_salt: str | None,
    *,
    extra_keys: Any,
) -> Found | None:
    """What workers hold of the part of a prompt that can be reused; None where that is less than a block.

    An engine computes the last token itself. A prompt of whole blocks can therefore not be continued from its end, and
    at the end of the block before a hybrid model may lack what it needs.
    """
    whole, rest = divmod(len(tokens), index.block_size)
    if not rest:
        if whole <= 1:
            return None
        tokens = tokens[:-1]
        extra_keys = None if extra_keys is None else extra_keys[: whole - 1]
    elif not whole:
        return None
    if isinstance(index, PrefixIndex) and type(index).match is PrefixIndex.match:
        return index.find(tokens, lora_name, lora_id, cache_salt, extra_keys)
    matches = index.match(tokens, lora_name=lora_name, lora_id=lora_id, cache_salt=cache_salt, extra_keys=extra_keys)
    return Found(
        [
            (one.worker, one.dp_rank, one.usable, tuple(one.fastest.get(tier, 0) for tier in TIERS), one.state)
            for one in matches
        ]
    )
