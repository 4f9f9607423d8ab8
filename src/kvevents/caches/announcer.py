"""How a component says what it holds."""

from kvevents.caches.node import Node
from kvevents.recorder import EventRecorder


class Announcer:
    """Announces the pages of nodes through a recorder.

    Args:
        recorder: where events go.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def stored(self, node: Node, session_id: str | None = None) -> None:
        """A node has its data now."""
        self._recorder.store(node.chain, node.pages, session_id=session_id)

    def removed(self, node: Node) -> None:
        """A node has lost its data."""
        self._recorder.remove(node.chain)

    def ids(self, node: Node) -> memoryview:
        """What the node's pages are called in events, int64."""
        return self._recorder.announced_ids(node.chain)
