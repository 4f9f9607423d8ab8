"""A node of the tree: a run of pages."""

from array import array
from typing import Any, TypeAlias

from kvevents._core.tokens import TokenPages
from kvevents.hashing import HashChain

Namespace: TypeAlias = tuple[str | None, str | None]
"""`extra_key` and `cache_salt`: prompts in different namespaces share nothing."""


class Node:
    """A run of consecutive pages; its children begin with different pages. A root has no pages.

    The caches own the fields; callers only pass nodes back, to `lock` and `unlock`.

    Attributes:
        parent: the run above; None for a root, and for a node that was evicted.
        children: by the key of their first page.
        pages: the tokens of the run.
        chain: their hashes.
        slots: where their KV is, one slot a unit.
        locks: how many holders the run or a run below it has.
        last_access: the clock's reading when a walk last came by.
        created: the clock's reading when the node was made.
        hits: inserts that came by.
        priority: the highest of the inserts that came by.
        queued: the node's entry in the queue of victims.
    """

    __slots__ = (
        "chain",
        "children",
        "created",
        "hits",
        "last_access",
        "locks",
        "pages",
        "parent",
        "priority",
        "queued",
        "slots",
    )

    def __init__(self, pages: TokenPages, chain: HashChain, slots: "array[int]", *, priority: int = 0) -> None:
        self.parent: Node | None = None
        self.children: dict[bytes, Node] = {}
        self.pages = pages
        self.chain = chain
        self.slots = slots
        self.locks = 0
        self.last_access: float = 0
        self.created: float = 0
        self.hits = 0
        self.priority = priority
        self.queued: tuple[Any, ...] | None = None

    @property
    def is_root(self) -> bool:
        """Whether this is the top of a namespace."""
        return not len(self.pages)

    @property
    def namespace(self) -> Namespace:
        """What the node's prompts share beside their tokens."""
        return self.chain.extra_key, self.chain.cache_salt

    def top(self) -> "Node":
        """The uppermost node above this one: a root, unless the node was evicted."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def __repr__(self) -> str:
        return f"<Node: {len(self.pages)} pages, {len(self.children)} children, {self.locks} locks>"
