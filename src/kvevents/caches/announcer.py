"""How a component says what it holds."""

from typing import Self

from kvevents._core.tokens import TokenPages
from kvevents.caches.node import Node
from kvevents.events import StorageMedium
from kvevents.hashing import HashChain
from kvevents.recorder import CacheGroup, EventRecorder


class Announcer:
    """Announces what nodes gain and lose of one component.

    Args:
        recorder: where events go.
        medium: the tier that it is about.
        group: who announces, in a cache that tells its groups apart.
        silent: changes of this component are nobody's news.
    """

    def __init__(
        self,
        recorder: EventRecorder,
        *,
        medium: StorageMedium = StorageMedium.GPU,
        group: CacheGroup | None = None,
        silent: bool = False,
    ) -> None:
        self.medium = medium
        self._recorder = recorder
        self._group = group
        self._silent = silent

    def stored(self, node: Node, session_id: str | None = None) -> None:
        """A node has its data now."""
        if not self._silent:
            self._recorder.store(
                self.chain(node), self.pages(node), medium=self.medium, session_id=session_id, group=self._group
            )

    def removed(self, node: Node) -> None:
        """A node has lost its data."""
        if not self._silent:
            self._recorder.remove(self.chain(node), medium=self.medium, group=self._group)

    def below(self, medium: StorageMedium) -> Self:
        """One that says the same of another tier."""
        return type(self)(self._recorder, medium=medium, group=self._group, silent=self._silent)

    def ids(self, node: Node) -> memoryview:
        """What the node's blocks are called in events, int64."""
        return self._recorder.announced_ids(self.chain(node))

    def chain(self, node: Node) -> HashChain:
        """The blocks of a node that stand for its data: all of them."""
        return node.chain

    def pages(self, node: Node) -> TokenPages:
        """Their tokens."""
        return node.pages


class EndAnnouncer(Announcer):
    """Announces what stands at a node's end, by the last block."""

    def chain(self, node: Node) -> HashChain:
        return node.chain.split(len(node.chain) - 1)[1]

    def pages(self, node: Node) -> TokenPages:
        return node.pages.cut(len(node.pages) - 1, len(node.pages))
