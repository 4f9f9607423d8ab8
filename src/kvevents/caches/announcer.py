"""How a component says what it holds."""

from typing import NamedTuple

from kvevents._core.tokens import TokenPages
from kvevents.caches.node import Node
from kvevents.hashing import HashChain
from kvevents.recorder import CacheGroup, EventRecorder


class Blocks(NamedTuple):
    """Consecutive pages and their tokens."""

    chain: HashChain
    pages: TokenPages


class Announcer:
    """Announces what nodes gain and lose of one component.

    Args:
        recorder: where events go.
        group: who announces, in a cache that tells its groups apart.
        silent: changes of this component are nobody's news.
    """

    def __init__(self, recorder: EventRecorder, *, group: CacheGroup | None = None, silent: bool = False) -> None:
        self._recorder = recorder
        self._group = group
        self._silent = silent

    def stored(self, node: Node, session_id: str | None = None) -> None:
        """A node has its data now."""
        if not self._silent:
            chain, pages = self.blocks(node)
            self._recorder.store(chain, pages, session_id=session_id, group=self._group)

    def removed(self, node: Node) -> None:
        """A node has lost its data."""
        if not self._silent:
            self._recorder.remove(self.blocks(node).chain, group=self._group)

    def ids(self, node: Node) -> memoryview:
        """What the node's blocks are called in events, int64."""
        return self._recorder.announced_ids(self.blocks(node).chain)

    def blocks(self, node: Node) -> Blocks:
        """The pages of a node that stand for its data: all of them."""
        return Blocks(node.chain, node.pages)


class EndAnnouncer(Announcer):
    """Announces what stands at a node's end, by the last page."""

    def blocks(self, node: Node) -> Blocks:
        last = len(node.pages) - 1
        return Blocks(node.chain.split(last)[1], node.pages.cut(last, last + 1)) if last else super().blocks(node)
