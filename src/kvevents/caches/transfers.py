"""Copies on their way from one tier to the next lower one."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import NamedTuple, TypeAlias

from kvevents.caches.copies import Copies
from kvevents.caches.node import Node
from kvevents.caches.residence import Residence
from kvevents.errors import KVEventsError

Copying: TypeAlias = "Future[None] | None"
"""A copy under way; None: it is done already."""


class Move(NamedTuple):
    """What is copied of one component."""

    source: Residence
    target: Copies
    nodes: list[Node]
    """Top first. A node that is split meanwhile is replaced by its parts."""


class Transfer:
    """What is copied on behalf of one node: all of it arrives, or none.

    Args:
        end: the node.
        moves: what is copied, full attention first.
        keeps: copies of the node that have to stay until `let_go`.
    """

    def __init__(self, end: Node, moves: list[Move], *, keeps: Iterable[Copies] = ()) -> None:
        self.end = end
        self.moves = moves
        self._kept = [(copies, end) for copies in keeps]
        for copies, node in self._kept:
            copies.keep(node)
        self._copies: list[Copying] | None = None

    @property
    def is_started(self) -> bool:
        """Whether the copying has begun."""
        return self._copies is not None

    def start(self, copy: Callable[[Move], Copying]) -> None:
        """Begin to copy; an error counts as one of the copy, and what an interrupt keeps from beginning as failed."""
        self._copies = [failed(KVEventsError("the copy was interrupted"))] * len(self.moves)
        for index, move in enumerate(self.moves):
            try:
                self._copies[index] = copy(move)
            except Exception as error:
                self._copies[index] = failed(error)

    def is_done(self) -> bool:
        """Whether nothing is under way any more."""
        return self._copies is not None and all(each is None or each.done() for each in self._copies)

    def error(self) -> BaseException | None:
        """Wait for the copy; why it failed, or None."""
        errors = [error_of(each) for each in self._copies or () if each is not None]
        return next((error for error in errors if error is not None), None)

    def let_go(self) -> None:
        """What was kept may go."""
        for copies, node in self._kept:
            copies.let_go(node)
        self._kept.clear()

    def split(self, upper: Node, lower: Node) -> None:
        """Go on with both parts of a node, the upper one first, where the upper one has a part of it."""
        for move in self.moves:
            if lower in move.nodes and move.target.is_coming(upper):
                move.nodes.insert(move.nodes.index(lower), upper)
        self._kept += [(copies, upper) for copies, node in self._kept if node is lower and copies.part(upper).locks]

    def nodes(self) -> Iterable[Node]:
        """All nodes it is about, each once, in an order that is the same in every run."""
        return dict.fromkeys([self.end, *(node for move in self.moves for node in move.nodes)])


class Transfers:
    """Transfers into one tier, in the order in which they were submitted: that is also how they are settled.

    Args:
        copy: begins to copy.
        settle: told of each transfer that has ended, with why it failed; it has announced or undone it then.
    """

    def __init__(
        self, copy: Callable[[Move], Copying], settle: Callable[[Transfer, BaseException | None], None]
    ) -> None:
        self._copy = copy
        self._settle = settle
        self._queue: list[Transfer] = []
        self._busy: dict[Node, Transfer] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def is_busy(self, node: Node) -> bool:
        """Whether a transfer is about `node`."""
        return node in self._busy

    def submit(self, transfer: Transfer) -> None:
        """Queue a transfer, whose slots are taken."""
        self._queue.append(transfer)
        for node in transfer.nodes():
            assert node not in self._busy, f"{node} is being copied already"
            self._busy[node] = transfer

    def poll(self) -> None:
        """Begin what is queued, and settle what has ended, up to the first that has not."""
        for transfer in self._queue:
            if not transfer.is_started:
                transfer.start(self._copy)
        while self._queue and self._queue[0].is_done():
            self._finish()

    def wait(self) -> None:
        """Begin what is queued, and settle everything."""
        self.poll()
        while self._queue:
            self._finish()

    def split(self, upper: Node, lower: Node) -> None:
        """A node that is being copied goes on as two, the upper one first."""
        transfer = self._busy.get(lower)
        if transfer is None:
            return
        self._busy[upper] = transfer
        transfer.split(upper, lower)

    def clear(self) -> None:
        """Forget everything: the nodes are gone. What is being copied is waited for, since its slots are reused."""
        for transfer in self._queue:
            if transfer.is_started:
                transfer.error()
        self._queue.clear()
        self._busy.clear()

    def check_integrity(self, nodes: Sequence[Node], targets: Iterable[Copies]) -> None:
        """Raise AssertionError unless what is on its way is for nodes of the tree, and `targets` expect no more."""
        known = set(nodes)
        for target in targets:
            for node in nodes:
                assert not target.is_coming(node) or self.is_busy(node), f"{node} expects a copy that nobody makes"
        assert set(self._busy.values()) <= set(self._queue), "nodes wait for copies that are over"
        for transfer in self._queue:
            for move in transfer.moves:
                for node in move.nodes:
                    assert node in known, f"{node} is being copied but has left the tree"
                    assert move.target.is_coming(node), f"{node} is being copied but not expected"
                    assert self._busy.get(node) is transfer, f"{node} is being copied but not busy"

    def _finish(self) -> None:
        transfer = self._queue[0]
        error = transfer.error()  # waits, and may be interrupted
        del self._queue[0]
        self._busy = {node: other for node, other in self._busy.items() if other is not transfer}
        self._settle(transfer, error)


def failed(error: Exception) -> "Future[None]":
    """A copy that did not begin."""
    copy: Future[None] = Future()
    copy.set_exception(error)
    return copy


def error_of(copy: "Future[None]") -> BaseException | None:
    """Wait for a copy; why it failed, or None. One that was cancelled has failed too."""
    try:
        return copy.exception()
    except CancelledError as error:
        return error
