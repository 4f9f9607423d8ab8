"""Open sessions, and the nodes that their next turns will ask for."""

from collections.abc import Iterable

from kvevents.caches.eviction import EvictionPolicy, Order
from kvevents.caches.node import Node


class Sessions:
    """Which nodes open sessions want: those that an insert of theirs has come by, until they are closed.

    Whoever wants a node wants those above it too. `Node.sessions` says who wants a node; for each session its lowest
    nodes are known, so that a close costs its own nodes. An insert opens a session; one of which nothing is cached any
    more is as good as closed.
    """

    def __init__(self) -> None:
        self._ends: dict[str, dict[Node, None]] = {}

    def join(self, session_id: str, node: Node) -> None:
        """A turn of a session has ended at a node."""
        at = node
        while at.parent is not None and session_id not in (at.sessions or ()):
            if at.sessions is None:
                at.sessions = set()
            at.sessions.add(session_id)
            at = at.parent
        if at is not node:
            ends = self._ends.setdefault(session_id, {})
            ends.pop(at, None)
            ends[node] = None

    def close(self, session_id: str) -> list[Node]:
        """A session has ended: the nodes that it has wanted."""
        wanted = []
        for end in self._ends.pop(session_id, {}):
            at = end
            while at.parent is not None and at.sessions is not None and session_id in at.sessions:
                self._leave(session_id, at)
                wanted.append(at)
                at = at.parent
        return wanted

    def split(self, upper: Node, lower: Node) -> None:
        """Whoever wants a node wants both its parts."""
        upper.sessions = None if lower.sessions is None else set(lower.sessions)

    def left(self, node: Node, parent: Node) -> None:
        """A node has left the tree: what is above it is still wanted."""
        for session_id in node.sessions or ():
            ends = self._ends[session_id]
            del ends[node]
            others = parent.children.values()
            if not parent.is_root and not any(session_id in (other.sessions or ()) for other in others):
                ends[parent] = None
            if not ends:
                del self._ends[session_id]
        node.sessions = None

    def clear(self) -> None:
        """Nothing is cached any more."""
        self._ends.clear()

    def check_integrity(self, nodes: Iterable[Node]) -> None:
        """Raise AssertionError unless what is noted of sessions agrees with what is noted on the nodes."""
        ends: dict[str, set[Node]] = {}
        for node in nodes:
            below = {session for child in node.children.values() for session in child.sessions or ()}
            wanted = node.sessions or set()
            assert wanted >= below, f"{node} is not wanted by all who want what is below it"
            assert node.sessions is None or wanted, f"{node} keeps an empty set of sessions"
            for session_id in wanted - below:
                ends.setdefault(session_id, set()).add(node)
        known = {session_id: set(found) for session_id, found in self._ends.items()}
        assert known == ends, f"the ends of sessions are {ends}, known are {known}"

    @staticmethod
    def _leave(session_id: str, node: Node) -> None:
        assert node.sessions is not None
        node.sessions.remove(session_id)
        if not node.sessions:
            node.sessions = None


class SessionsLast:
    """A policy for the nodes that no open session wants; after them the others, those that fewer want first.

    Args:
        policy: decides among equals.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy

    def __call__(self, node: Node, /) -> Order:
        return len(node.sessions or ()), *self._policy(node)
