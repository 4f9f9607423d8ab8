"""The tier below host memory, in a store."""

from collections import Counter
from collections.abc import Sequence

from kvevents.caches.copies import Copies, PageCopies
from kvevents.caches.node import Node
from kvevents.caches.storage import StoredBlock, TierStore, blocks_of
from kvevents.caches.tiers import LowerTier, Tiers
from kvevents.caches.transfers import Copying, Move, Transfer, Transfers


class StorageTier(LowerTier):
    """What nodes have in a store: written once it is in host memory, with everything above it.

    Args:
        store: keeps the bytes.
        full: copies of full-attention KV.
        beside: copies of what the other components have.
        tiers: who has what.
        failures: counts what went wrong, by reason.
    """

    def __init__(
        self, store: TierStore, full: PageCopies, beside: Sequence[Copies], *, tiers: Tiers, failures: Counter[str]
    ) -> None:
        super().__init__(store.medium, full, beside)
        self.transfers = Transfers(self._write, self._settle)
        self.fetched = 0
        """Units of full attention read into host memory so far."""
        self._store = store
        self._tiers = tiers
        self._failures = failures

    def submit(self, node: Node) -> None:
        """Queue the writes of what host memory has of a node and the store has not, if it has room."""
        parent = node.parent
        assert parent is not None, "a root has nothing to write"
        if self.transfers.is_busy(node) or not (parent.is_root or self.full.has(parent)):
            return
        moves = [
            Move(source, target, [node])
            for source, target in zip(self._tiers.host.copies, self.copies, strict=True)
            if source.has(node) and not source.is_coming(node) and not target.has(node)
        ]
        if not moves or not (self.full.has(node) or moves[0].target is self.full):
            return
        if not self._has_room(moves, parent):
            self._failures["storage_full"] += 1
            return
        for move in moves:
            slots = move.source.part(node).slots
            assert slots is not None
            move.target.expect(node, move.target.take(len(slots)))
        self.transfers.submit(Transfer(node, moves, keeps=self._tiers.host.copies))

    def fetch(self, index: int, node: Node) -> bool:
        """Read what the store has of a component of a node into host memory; False where that failed."""
        source, target = self.copies[index], self._tiers.host.copies[index]
        slots = source.part(node).slots
        if slots is None or source.is_coming(node):
            return False
        short = len(slots) - target.allocator.available
        if short > 0 and self._tiers.evict(self._tiers.host, index, short) < short:
            self._failures["host_full"] += 1
            return False
        taken = target.take(len(slots))
        try:
            wait(self._store.read(blocks_of(node, source.component.group), taken))
        except Exception:
            target.allocator.release(taken)
            self._failures["storage_read"] += 1
            self._forget(index, node)
            return False
        target.hold(node, taken)
        target.stamp(node)
        if not index:
            self.fetched += node.length
        return True

    def removed(self, copies: Copies, node: Node) -> None:
        """The store does not need a copy any more."""
        self._remove(node, copies.component.group)

    def forget(self, blocks: Sequence[StoredBlock]) -> None:
        """Let the store forget blocks; where it fails, it has them still, and the next cache finds them there."""
        try:
            self._store.remove(blocks)
        except Exception:
            self._failures["storage_remove"] += 1

    def clear(self, nodes: Sequence[Node]) -> None:
        """Nothing is kept any more."""
        self.transfers.clear()
        for node in nodes:
            for copies in self.copies:
                if copies.has(node):
                    self._remove(node, copies.component.group)

    def _forget(self, index: int, node: Node) -> None:
        """Give up what cannot be read; of full attention also what the store has below it, which nobody could reach."""
        if index:
            self.copies[index].drop(node)
            return
        self.transfers.wait()
        below = [node]
        for at in below:
            below.extend(at.children.values())
        for at in reversed(below):
            self.drop(at)
        for at in reversed(below[1:]):
            if at.parent is not None:  # it may have gone with its last child
                self._tiers.prune(at)

    def _has_room(self, moves: list[Move], parent: Node) -> bool:
        """Whether the store has room, if need be after an eviction; not of what is above."""
        if not parent.is_root:
            self.full.keep(parent)
        try:
            for move in moves:
                needed = len(move.source.part(move.nodes[0]).slots or ())
                short = needed - move.target.allocator.available
                if short > 0:
                    self._tiers.evict(self, self.copies.index(move.target), short)
                if move.target.allocator.available < needed:
                    return False
        finally:
            if not parent.is_root:
                self.full.let_go(parent)
        return True

    def _write(self, move: Move) -> Copying:
        blocks = [block for at in move.nodes for block in blocks_of(at, move.target.component.group)]
        return self._store.write(blocks, move.source.gather(move.nodes))

    def _settle(self, transfer: Transfer, error: BaseException | None) -> None:
        """Announce what was written, or undo it."""
        parents = [move.nodes[0].parent for move in transfer.moves if move.target is self.full]
        lost = any(not (parent is None or parent.is_root or self.arrived(parent)) for parent in parents)
        if not parents and not self.arrived(transfer.end):
            lost = True
        transfer.let_go()
        if error is None and not lost:
            for move in transfer.moves:
                for node in move.nodes:
                    move.target.arrive(node)
        else:
            self._failures["storage_write"] += 1
            for move in transfer.moves:
                for node in move.nodes:
                    move.target.drop(node)
                    self._remove(node, move.target.component.group)
        for node in transfer.nodes():
            self._tiers.note(node)
            if node.parent is not None:
                self._tiers.note(node.parent)

    def _remove(self, node: Node, component: str) -> None:
        self.forget(blocks_of(node, component))


def wait(copy: Copying) -> None:
    """Wait for a copy; raise what went wrong."""
    if copy is not None:
        copy.result()
