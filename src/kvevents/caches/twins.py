"""Pages that are announced under the same ids in two namespaces."""

from collections.abc import Iterator

from kvevents.caches.copies import Copies
from kvevents.caches.node import Node
from kvevents.caches.tree import Tree


class Twins:
    """Keeps what is announced of lower tiers true where namespaces share ids.

    In the event format `default` an `extra_key` without a registered name does not enter the ids, so that two
    namespaces announce the same ids for the same tokens. On the device consumers count. In lower tiers they keep sets:
    there the first removal would take away what the other namespace still has. So before events are taken, such copies
    are announced once more.

    Args:
        tree: the nodes.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._bereft: dict[tuple[Copies, Node], None] = {}

    def removed(self, copies: Copies, node: Node) -> None:
        """A copy is announced as removed; its node is still in its place."""
        ids: set[int] | None = None
        for twin in self._twins(node):
            if copies.has(twin) and not copies.is_coming(twin):
                ids = set(copies.announcer.ids(node)) if ids is None else ids
                if ids.isdisjoint(copies.announcer.ids(twin)):
                    continue
                self._bereft.setdefault((copies, twin))

    def split(self, upper: Node, lower: Node) -> None:
        """What is to be announced once more is announced of both parts."""
        for copies, node in list(self._bereft):
            if node is lower:
                self._bereft.setdefault((copies, upper))

    def repair(self) -> None:
        """Announce once more what consumers would miss."""
        if not self._bereft:
            return
        for copies, node in self._bereft:
            if copies.has(node) and not copies.is_coming(node) and node in self._tree:
                copies.announcer.stored(node)
        self._bereft.clear()

    def clear(self) -> None:
        """Nothing is left to be repaired."""
        self._bereft.clear()

    def _twins(self, node: Node) -> Iterator[Node]:
        """The nodes of other namespaces that may have ids in common with `node`."""
        path = [node]
        while (parent := path[-1].parent) is not None and not parent.is_root:
            path.append(parent)
        path.reverse()
        for root in self._tree.roots():
            if root.namespace == node.namespace or root.chain.cache_salt != node.chain.cache_salt:
                continue
            yield from follow(root, path)


def follow(root: Node, path: list[Node]) -> Iterator[Node]:
    """The nodes below a root that share pages with a path of another tree, top first."""
    at, offset = root, 0
    for node in path:
        page = 0
        while page < len(node.pages):
            if offset == len(at.pages):
                child = at.children.get(node.pages.key(page))
                if child is None:
                    return
                at, offset = child, 0
                yield at
            shared = at.pages.cut(offset, len(at.pages)).common(node.pages, page)
            if not shared:
                return
            page += shared
            offset += shared
