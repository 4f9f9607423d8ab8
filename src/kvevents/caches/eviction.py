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


POLICIES: Mapping[str, EvictionPolicy] = MappingProxyType(
    {
        "lru": lru,
        "lfu": lfu,
        "fifo": fifo,
        "mru": mru,
        "filo": filo,
        "priority": priority,
        "slru": SegmentedLRU(),
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
