"""Backups: copies of what nodes have, from one tier to the next lower one."""

from collections import Counter
from collections.abc import Callable, Sequence

from kvevents.caches.component import Component
from kvevents.caches.full import FullComponent
from kvevents.caches.node import Node
from kvevents.caches.tiers import Tiers
from kvevents.caches.transfers import Copying, Move, Transfer, Transfers


class HostBackups:
    """Copies from the device to host memory.

        backed up <--------------------.
        not backed up --submit--> on its way --poll--> acknowledged and announced
              ^-------- failed ------------'

    Until it is acknowledged a backup keeps what it reads locked, unless somebody waits for it anyway.

    Args:
        tiers: who has what.
        components: what nodes have on the device, full attention first.
        lock: keeps what a prompt that ends at a node needs on the device.
        unlock: undoes that.
        copy: begins to copy from the device.
        acknowledged: told of each node of which something has arrived.
        failures: counts what went wrong, by reason.
    """

    def __init__(
        self,
        tiers: Tiers,
        components: Sequence[Component],
        *,
        lock: Callable[[Node], None],
        unlock: Callable[[Node], None],
        copy: Callable[[Move], Copying],
        acknowledged: Callable[[Node], None],
        failures: Counter[str],
    ) -> None:
        self.transfers = Transfers(copy, self._settle)
        self._tiers = tiers
        self._components = components
        self._lock = lock
        self._unlock = unlock
        self._acknowledged = acknowledged
        self._failures = failures
        self._locked: set[Transfer] = set()

    def submit_path(self, node: Node) -> None:
        """Back up a node, and before it those above it that are not backed up, as far as there is room."""
        path: list[Node] = []
        at = node
        while at.parent is not None and not self._tiers.host.full.has(at):
            path.append(at)
            at = at.parent
        for each in reversed(path):
            if not self.submit(each):
                return

    def submit_rest(self, node: Node) -> None:
        """Back up what a node that is backed up has gained beside its full-attention KV."""
        if self._tiers.host.arrived(node) and not self.transfers.is_busy(node):
            self.submit(node)

    def back_up(self, node: Node, index: int) -> None:
        """Back up a node on the spot, since it is to lose a component; nothing if that is a copy already."""
        component, copies = self._components[index], self._tiers.host.copies[index]
        if copies.has(node):
            return
        self.transfers.wait()
        needed = sum(
            len(component.part(each).slots or ()) for each in copies.wanted(node, component, self.transfers.is_busy)
        )
        if index and copies.allocator.available < needed:
            self._tiers.evict(self._tiers.host, index, needed)
        if needed and self.submit(node, locks=False):
            self.transfers.wait()

    def submit(self, node: Node, *, locks: bool = True) -> bool:
        """Take room in host memory for what a node has, and queue the copies; False where there is no room."""
        host = self._tiers.host
        moves = [
            Move(component, copies, copies.wanted(node, component, self.transfers.is_busy))
            for component, copies in zip(self._components, host.copies, strict=True)
        ]
        for index, move in enumerate(moves):
            if not self._has_room(index, move):
                self._failures["host_full"] += 1
                return False
        moves = [move for move in moves if move.nodes]
        if not moves:
            return True
        for move in moves:
            for each in move.nodes:
                slots = move.source.part(each).slots
                assert slots is not None, f"{each} has nothing to copy"
                move.target.expect(each, move.target.take(len(slots)))
        transfer = Transfer(node, moves)
        self.transfers.submit(transfer)
        if locks:
            self._locked.add(transfer)
            self._lock(node)
        return True

    def is_locking(self, node: Node) -> bool:
        """Whether one of the locks of a node itself is that of a backup."""
        return any(transfer.end is node for transfer in self._locked)

    def clear(self) -> None:
        """Forget all backups: the nodes are gone, and so are their locks."""
        self.transfers.clear()
        self._locked.clear()

    def _has_room(self, index: int, move: Move) -> bool:
        """Whether host memory has room for a component, if need be after an eviction."""
        needed = sum(len(move.source.part(node).slots or ()) for node in move.nodes)
        short = needed - move.target.allocator.available
        if short <= 0:
            return True
        self._tiers.evict(self._tiers.host, index, needed if index else short)
        return move.target.allocator.available >= needed

    def _settle(self, transfer: Transfer, error: BaseException | None) -> None:
        """Announce a backup, or undo it."""
        if error is None and transfer in self._locked and not self._follows(transfer):
            self._failures["backup_without_parent"] += 1
        elif error is not None:
            self._failures["backup"] += 1
        else:
            for move in transfer.moves:
                for node in move.nodes:
                    move.target.arrive(node)
            self._release(transfer)
            for node in dict.fromkeys(node for move in transfer.moves for node in move.nodes):
                self._acknowledged(node)
            return
        for move in transfer.moves:
            for node in move.nodes:
                move.target.drop(node)
        self._release(transfer)

    def _follows(self, transfer: Transfer) -> bool:
        """Whether what is above a backup is backed up: in write-through no copy may hang below a node without one."""
        moves = [move for move in transfer.moves if isinstance(move.source, FullComponent)]
        tops = [move.nodes[0].parent for move in moves]
        return all(top is None or top.is_root or self._tiers.is_backed(top) for top in tops)

    def _release(self, transfer: Transfer) -> None:
        if transfer in self._locked:
            self._locked.remove(transfer)
            self._unlock(transfer.end)
        for at in self._components[0].span(transfer.end):
            self._tiers.note(at)
