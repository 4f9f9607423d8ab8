"""A node of the tree: a run of pages."""

from array import array
from typing import Protocol, TypeAlias

from kvevents._core.tokens import TokenPages
from kvevents.hashing import HashChain

Namespace: TypeAlias = tuple[str | None, str | None]
"""`extra_key` and `cache_salt`: prompts in different namespaces share nothing."""


class Holder(Protocol):
    """What a node has of one component: the node itself for full attention, a `Part` of it for every other.

    Attributes:
        slots: where the data is; None where there is none.
        locks: how many holders keep it, be it there or not.
    """

    slots: "array[int] | None"
    locks: int


class Part:
    """What a node has beside its full-attention KV: the KV of a window, or a state.

    Attributes:
        slots: where it is; None where there is none.
        locks: how many holders keep it.
        used: the component's reading when a prompt last needed it.
    """

    __slots__ = ("locks", "slots", "used")

    def __init__(self) -> None:
        self.slots: array[int] | None = None
        self.locks = 0
        self.used = 0


class Node:
    """A run of consecutive pages; its children begin with different pages. A root has no pages.

    The caches own the fields; callers only pass nodes back, to `lock` and `unlock`.

    Attributes:
        parent: the node above; None for a root, and for a node that was evicted.
        children: by the key of their first page.
        pages: the tokens of the run.
        chain: their hashes.
        length: units in the run.
        end: units from the start of the prompt to the run's end.
        reach: the largest `end` that the branch through this node ever had; eviction does not lower it.
        slots: where the full-attention KV is, one slot a unit; None where it is not on the device.
        held: how often the node itself is locked.
        locks: how often it or a node below it is.
        parts: what the node has of each further component, in the cache's order.
        last_access: the clock's reading when a walk last came by.
        created: the clock's reading when the node was made.
        hits: inserts that came by.
        priority: the highest of the inserts that came by.
        sessions: the open ones that want the node, where the cache keeps count of them; None: nobody does.
    """

    __slots__ = (
        "chain",
        "children",
        "created",
        "end",
        "held",
        "hits",
        "last_access",
        "length",
        "locks",
        "pages",
        "parent",
        "parts",
        "priority",
        "reach",
        "sessions",
        "slots",
    )

    def __init__(
        self,
        pages: TokenPages,
        chain: HashChain,
        slots: "array[int] | None" = None,
        *,
        length: int = 0,
        priority: int = 0,
        parts: int = 0,
    ) -> None:
        self.parent: Node | None = None
        self.children: dict[bytes, Node] = {}
        self.pages = pages
        self.chain = chain
        self.length = length
        self.end = length
        self.reach = length
        self.slots = slots
        self.held = 0
        self.locks = 0
        self.parts = tuple([Part() for _ in range(parts)]) if parts else ()
        self.last_access: float = 0
        self.created: float = 0
        self.hits = 0
        self.priority = priority
        self.sessions: set[str] | None = None

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
        return f"<Node: {len(self.pages)} pages to {self.end}, {len(self.children)} children, {self.locks} locks>"


class Root(Node):
    """The top of a namespace.

    Attributes:
        tree: the tree it was made for.
    """

    __slots__ = ("tree",)

    def __init__(self, pages: TokenPages, chain: HashChain, *, tree: object) -> None:
        super().__init__(pages, chain, array("q"))
        self.tree = tree
