"""The tree that every cache is made of: runs of pages, shared where prompts share them."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from kvevents._core.tokens import TokenPages
from kvevents.caches.clock import Clock
from kvevents.caches.inputs import Tokens
from kvevents.caches.node import Namespace, Node, Root
from kvevents.caches.results import CachedLength
from kvevents.hashing import HashChain


class Walk(NamedTuple):
    """How far a prompt goes down the tree."""

    path: list[Node]
    """The nodes it covers, top first, each as a whole; without the root."""
    pages: int
    """Pages of the prompt on that path."""
    end: Node
    """The last of the path, or the root."""
    lowest: Node
    """The lowest node the clock stamped: `end`, or the part below it that was split off."""


class Contents(Protocol):
    """What the nodes hold."""

    def split(self, upper: Node, lower: Node, /) -> None:
        """`upper` is new and has the first pages of what was `lower`; divide what that held between them."""


class Tree:
    """Nodes under one root a namespace.

    A root is part of the tree while it has children, so that a namespace that was only asked for leaves nothing behind.

    Args:
        page_size: units in a page.
        bigram: units are pairs of neighbouring tokens.
        clock: stamps the nodes.
        contents: what the nodes hold.
    """

    def __init__(self, page_size: int, *, bigram: bool, clock: Clock, contents: Sequence[Contents] = ()) -> None:
        self.page_size = page_size
        self.bigram = bigram
        self._clock = clock
        self._contents = contents
        self.on_detach: Callable[[Node, Node], None] | None = None
        """Told of each node that has left, and of the one above it."""
        self._roots: dict[Namespace, Node] = {}

    def __iter__(self) -> Iterator[Node]:
        """All nodes but the roots, parents first."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def __contains__(self, node: Node) -> bool:
        top = node.top()
        return top.is_root and self._roots.get(top.namespace) is top

    def is_foreign(self, node: Node) -> bool:
        """Whether a node is in another tree, or was when that was emptied."""
        top = node.top()
        return isinstance(top, Root) and top.tree is not self

    def roots(self) -> Iterator[Node]:
        """The tops of all namespaces that have nodes."""
        return iter(self._roots.values())

    def follow(self, *contents: Contents) -> None:
        """Keep more on the nodes, split after what is there already."""
        self._contents = [*self._contents, *contents]

    def pages_of(self, tokens: Tokens) -> TokenPages:
        """The whole pages of a prompt.

        Raises:
            ValueError: a token id is negative or too large.
        """
        return TokenPages(tokens, self.page_size, bigram=self.bigram)

    def root(self, extra_key: str | None, cache_salt: str | None) -> Node:
        """The root of a namespace; a new one, not yet part of the tree, where it has no nodes."""
        namespace = (extra_key, cache_salt or None)
        root = self._roots.get(namespace)
        if root is None:
            chain = HashChain.root(self.page_size, extra_key=extra_key, cache_salt=cache_salt, bigram=self.bigram)
            root = Root(self.pages_of(()), chain, tree=self)
        return root

    def walk(self, root: Node, prompt: TokenPages, visit: Callable[[Node], None]) -> Walk:
        """Follow a prompt as far as it is known; a node that it leaves half-way is split there.

        Args:
            root: the prompt's namespace.
            prompt: its pages.
            visit: how the clock stamps what the walk comes to.
        """
        self._clock.begin()
        path: list[Node] = []
        pages, count = 0, len(prompt)
        end = lowest = root
        while pages < count and (child := end.children.get(prompt.key(pages))) is not None:
            visit(child)
            lowest = end = child
            shared = child.pages.common(prompt, pages)
            if shared < len(child.pages):
                end = self.split(child, shared)
            path.append(end)
            pages += shared
            if end is not lowest:
                break
        return Walk(path, pages, end, lowest)

    def cached(self, root: Node, prompt: TokenPages, is_held: Callable[[Node], bool]) -> CachedLength:
        """How much of a prompt is in the tree; nothing is stamped or split.

        Args:
            root: the prompt's namespace.
            prompt: its pages.
            is_held: whether any tier has a node's full-attention KV.
        """
        pages, device, count = 0, 0, len(prompt)
        node: Node = root
        while pages < count and (child := node.children.get(prompt.key(pages))) is not None and is_held(child):
            shared = child.pages.common(prompt, pages)
            pages += shared
            if child.slots is not None:
                device = pages
            if shared < len(child.pages):
                break
            node = child
        return CachedLength(device * self.page_size, pages * self.page_size)

    def split(self, node: Node, pages: int) -> Node:
        """Give the first `pages` pages of a node to a new one above it, and return that."""
        parent = node.parent
        assert parent is not None, "a root has no pages to split"
        assert 0 < pages < len(node.pages)
        head, tail = node.chain.split(pages)
        upper = Node(
            node.pages.cut(0, pages),
            head,
            length=pages * self.page_size,
            priority=node.priority,
            parts=len(node.parts),
        )
        upper.end = parent.end + upper.length
        upper.reach = node.reach
        upper.hits = node.hits
        upper.parent = parent
        parent.children[upper.pages.key(0)] = upper
        node.pages, node.chain = node.pages.cut(pages, len(node.pages)), tail
        node.length -= upper.length
        node.parent = upper
        upper.children[node.pages.key(0)] = node
        for each in self._contents:
            each.split(upper, node)
        self._clock.split(upper, node)
        return upper

    def attach(self, node: Node, parent: Node) -> None:
        """Make a new node the child of `parent`."""
        if parent.parent is None and not parent.children:
            self._roots[parent.namespace] = parent
        node.parent = parent
        parent.children[node.pages.key(0)] = node
        node.end = node.reach = parent.end + node.length
        at: Node | None = parent
        while at is not None and at.reach < node.end:
            at.reach = node.end
            at = at.parent
        self._clock.create(node)

    def detach(self, node: Node) -> Node:
        """Take a leaf out and return its parent."""
        parent = node.parent
        assert parent is not None, "a root stays"
        assert not node.children, "its children would be lost"
        del parent.children[node.pages.key(0)]
        node.parent = None
        if self.on_detach is not None:
            self.on_detach(node, parent)
        if parent.is_root and not parent.children:
            del self._roots[parent.namespace]
        return parent

    def clear(self) -> None:
        """Let all nodes go."""
        self._roots.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError, saying what is broken, unless the nodes fit together and their hashes are right."""
        for namespace, root in self._roots.items():
            assert root.is_root, f"the root of {namespace} has pages"
            assert root.parent is None, f"the root of {namespace} has a parent"
            assert root.children, f"the root of {namespace} is kept without children"
            assert root.namespace == namespace, f"the root of {namespace} is that of {root.namespace}"
        for node in self:
            parent = node.parent
            assert parent is not None, f"{node} has no parent"
            assert len(node.pages), f"{node} has no pages"
            assert parent.children.get(node.pages.key(0)) is node, f"{node} is not where its first page says"
            assert parent.chain.extend(node.pages).ids == node.chain.ids, f"{node} has other hashes than its tokens"
            assert node.length == len(node.pages) * self.page_size, f"{node} has {node.length} units"
            assert node.end == parent.end + node.length, f"{node} does not end where its pages say"
            assert node.end <= node.reach <= parent.reach, f"{node} reaches {node.reach}"
