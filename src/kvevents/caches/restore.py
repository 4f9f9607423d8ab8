"""What a store has kept over a restart, back in the tree."""

from array import array
from collections import defaultdict
from collections.abc import Iterable

from kvevents._core.tokens import TokenPages
from kvevents.caches.component import Component
from kvevents.caches.node import Node
from kvevents.caches.storage import FULL, StoredBlock, block_key
from kvevents.caches.storage_tier import StorageTier
from kvevents.caches.tree import Tree
from kvevents.errors import ConfigError


class Restorer:
    """Makes nodes of blocks: a run of them is a node as long as all have the same components and one follower.

    Args:
        tree: empty.
        tier: where the blocks are.
        components: what nodes have on the device.
        parts: how many parts a node has beside its full-attention KV on the device.
    """

    def __init__(self, tree: Tree, tier: StorageTier, components: Iterable[Component], *, parts: int) -> None:
        self._tree = tree
        self._tier = tier
        self._groups = [component.group for component in components]
        self._parts = parts
        self._full: dict[bytes, StoredBlock] = {}
        self._beside: dict[str, dict[bytes, StoredBlock]] = {group: {} for group in self._groups[1:]}
        self._followers: dict[bytes | None, list[StoredBlock]] = defaultdict(list)

    def restore(self, blocks: Iterable[StoredBlock]) -> list[StoredBlock]:
        """Build the tree and announce it; the blocks that found no place in it.

        Raises:
            ConfigError: the blocks are those of a cache with other pages.
        """
        useless: list[StoredBlock] = []
        for block in blocks:
            if block.component == FULL:
                self._check(block)
                self._full[block.key] = block
                self._followers[block.parent].append(block)
            elif block.component in self._beside:
                self._beside[block.component][block.key] = block
            else:
                useless.append(block)
        stack: list[tuple[Node | None, StoredBlock]] = [(None, first) for first in self._followers.pop(None, [])]
        while stack:
            parent, first = stack.pop()
            run = self._run(first)
            node = self._attach(parent or self._tree.root(first.extra_key, first.cache_salt), run)
            if node is not None:
                stack.extend((node, block) for block in self._followers.pop(run[-1].key, []))
        for left in (self._full, *self._beside.values()):
            useless.extend(left.values())
        return useless

    def _check(self, block: StoredBlock) -> None:
        expected = self._tree.page_size + self._tree.bigram
        if len(block.tokens) != expected * 8:
            raise ConfigError(
                f"storage: expected blocks of {expected} tokens, as this cache has, got one of "
                f"{len(block.tokens) / 8:g}; give the store another place"
            )

    def _run(self, first: StoredBlock) -> list[StoredBlock]:
        """The blocks of the node that begins with `first`, as far as there is room."""
        run = [first]
        room = self._tier.full.allocator.available // self._tree.page_size
        while len(run) < room and len(followers := self._followers.get(run[-1].key, [])) == 1:
            if run[-1].key in self._beside.get("mamba", ()):
                break
            windows = self._beside.get("sliding_window", {})
            if (run[-1].key in windows) != (followers[0].key in windows):
                break
            run.append(followers[0])
            del self._followers[run[-2].key]
        return run

    def _attach(self, parent: Node, run: list[StoredBlock]) -> Node | None:
        """A node for a run; None where the blocks are not what their keys say, or there is no room."""
        overlap = int(self._tree.bigram)
        tokens = array("Q", run[0].tokens)
        for block in run[1:]:
            tokens.frombytes(block.tokens[overlap * 8 :])
        pages = TokenPages(tokens, self._tree.page_size, bigram=self._tree.bigram)
        node = Node(
            pages.cut(0, len(pages)),
            parent.chain.extend(pages),
            length=len(pages) * self._tree.page_size,
            parts=self._parts,
        )
        if [block_key(node, digest) for digest in node.chain.digests] != [block.key for block in run]:
            return None
        if self._tier.full.allocator.available < node.length:
            return None
        self._tree.attach(node, parent)
        for copies, group in zip(self._tier.copies, self._groups, strict=True):
            held = self._full if group == FULL else self._beside[group]
            keys = [run[-1].key] if group == "mamba" else [block.key for block in run]
            count = 1 if group == "mamba" else node.length
            if all(key in held for key in keys) and copies.allocator.available >= count:
                copies.hold(node, copies.take(count))
                copies.stamp(node)
                for key in keys:
                    del held[key]
        return node
