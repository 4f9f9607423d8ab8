"""Eviction policies: which leaf goes first."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol, TypeAlias

from kvevents.caches.node import Node
from kvevents.errors import ConfigError

Order: TypeAlias = tuple[float, ...]
"""A node's place in the order of eviction; the smallest goes first."""


class EvictionPolicy(Protocol):
    """Puts evictable leaves in order.

    The order of a node may change only when a walk comes by, when it gains or loses children, or when its locks do.
    """

    def __call__(self, node: Node, /) -> Order:
        """Where `node` stands."""


def lru(node: Node, /) -> Order:
    """The least recently used first."""
    return (node.last_access,)


def mru(node: Node, /) -> Order:
    """The most recently used first."""
    return (-node.last_access,)


def lfu(node: Node, /) -> Order:
    """The least often inserted first, then the least recently used."""
    return node.hits, node.last_access


def fifo(node: Node, /) -> Order:
    """The oldest first."""
    return (node.created,)


def filo(node: Node, /) -> Order:
    """The youngest first."""
    return (-node.created,)


def priority(node: Node, /) -> Order:
    """The lowest priority first, then the least recently used."""
    return node.priority, node.last_access


class SegmentedLRU:
    """What was inserted only a few times first, then the rest; each least recently used first.

    Args:
        protected_threshold: hits from which on a node belongs to the rest.
    """

    def __init__(self, protected_threshold: int = 2) -> None:
        self.protected_threshold = protected_threshold

    def __call__(self, node: Node, /) -> Order:
        return node.hits >= self.protected_threshold, node.last_access


class TailLRU:
    """What a conversation's next prompt can do without first, then the rest; each least recently used first.

    A branch that once reached L units and is expected to grow by `next_prompt_estimate` meets its latency target as
    long as at most `threshold` units have to be computed. So what lies beyond L + `next_prompt_estimate` -
    `threshold` is safe to lose (Tail-Optimized LRU, arXiv:2510.15152).

    Args:
        threshold: units that may be computed for the next prompt.
        next_prompt_estimate: units by which the next prompt is longer.
    """

    def __init__(self, threshold: int = 0, next_prompt_estimate: int = 0) -> None:
        self.threshold = threshold
        self.next_prompt_estimate = next_prompt_estimate

    def __call__(self, node: Node, /) -> Order:
        needed = max(node.reach + self.next_prompt_estimate - self.threshold, 0)
        return node.end - node.length < needed, node.last_access


POLICIES: Mapping[str, EvictionPolicy] = MappingProxyType(
    {
        "lru": lru,
        "lfu": lfu,
        "fifo": fifo,
        "mru": mru,
        "filo": filo,
        "priority": priority,
        "slru": SegmentedLRU(),
        "tlru": TailLRU(),
    }
)
"""By the names that SGLang's `--radix-eviction-policy` uses."""


def find_policy(choice: str | EvictionPolicy) -> EvictionPolicy:
    """A policy by name, or the one that was passed.

    Raises:
        ConfigError: there is none of that name.
    """
    if not isinstance(choice, str):
        return choice
    found = POLICIES.get(choice)
    if found is None:
        raise ConfigError(f"eviction_policy: expected one of {', '.join(POLICIES)}, got {choice!r}")
    return found
