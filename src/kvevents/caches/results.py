"""What the caches answer. Lengths are in units: tokens, or pairs where keys are bigrams; always whole pages."""

from typing import NamedTuple, Self

from kvevents.caches.node import Node


class PrefixMatch(NamedTuple):
    """What every match of a cache says."""

    length: int
    """Units whose KV is on the device."""
    host_length: int
    """Units after those whose KV is in a lower tier and can be loaded back."""
    slots: memoryview
    """int64, one a unit of `length`, in order; read-only."""
    node: Node
    """Where the match ends: what `lock` takes. The root of the namespace where nothing matched."""


class MatchResult(PrefixMatch):
    """The longest cached prefix of a prompt: a tuple of `length`, `host_length`, `slots` and `node`.

    Attributes:
        branch: units whose full-attention KV is in the tree, `length` or more. Where it is more, a window or a state
            is missing: with one at this place, prompts that share so much can go on from there.
    """

    branch: int

    def __new__(
        cls, length: int, host_length: int, slots: memoryview, node: Node, *, branch: int | None = None
    ) -> Self:
        match = super().__new__(cls, length, host_length, slots, node)
        match.branch = length if branch is None else branch
        return match


class CachedLength(NamedTuple):
    """How much of a prompt is cached, from its start, as full attention sees it."""

    device: int
    """Units whose KV is on the device."""
    total: int
    """Units whose KV is in any tier."""


class InsertResult(NamedTuple):
    """What an insert found and added."""

    prefix_length: int
    """Units that were cached before."""
    length: int
    """Units that are cached now: the whole pages of the prompt."""
    node: Node
    """Where the prompt ends: what `lock` takes. The root of the namespace where the prompt is shorter than a page."""
    window_kept: tuple[range, ...] = ()
    """Units whose window slots the cache keeps: those that had none, from `window_start` on."""
    state_kept: bool = False
    """Whether the cache keeps the state: the prompt's end had none."""
    refilled: tuple[range, ...] = ()
    """Units of `prefix_length` that only lower tiers had: the cache keeps their slots too."""


class EvictResult(NamedTuple):
    """What an eviction freed."""

    tokens: int
    """Units evicted; more than asked where a node was larger, fewer where the rest is locked."""
    window_tokens: int = 0
    """Units whose window KV was freed."""
    states: int = 0
    """States freed."""


class Sizes(NamedTuple):
    """How much of one component is in the tree: units, or states."""

    total: int
    """All of it."""
    evictable: int
    """What eviction could free."""
    protected: int
    """What is locked."""


class PrefetchResult(NamedTuple):
    """What a prefetch into host memory found and added."""

    prefix_length: int
    """Units that were cached before."""
    length: int
    """Units that are cached now: the whole pages of the prompt."""
    node: Node
    """Where the prompt ends: what `load_back` takes."""
    filled: tuple[range, ...] = ()
    """Units whose host slots the cache keeps: those that host memory had none for."""
