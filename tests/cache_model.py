"""A plain model of what a cache holds, made of its events alone."""

import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from hypothesis import strategies as st

from kvevents.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent

Namespace: TypeAlias = tuple[str | None, str | None]

PLAIN: Namespace = (None, None)
ANY_NAMESPACE = st.sampled_from([PLAIN, PLAIN, PLAIN, ("adapter", None), (None, "salt"), ("adapter", "salt")])


class Prompt(NamedTuple):
    """Pages by their letters, few enough that most prompts share a prefix with one that is cached; then a tail."""

    letters: str
    tail: list[int]

    def tokens(self, page_size: int) -> list[int]:
        """Pages differ in their last token only."""
        last = {"a": 1, "b": 1 << 33, "c": 2}
        return [token for page in self.letters for token in [7] * (page_size - 1) + [last[page]]] + self.tail


PROMPTS = st.builds(
    Prompt, st.text("aabc", min_size=1, max_size=5), st.lists(st.sampled_from([1, 7, 1 << 33]), max_size=3)
)


class Prefix(NamedTuple):
    """A block by what it means: a namespace and all units up to its end."""

    namespace: Namespace
    units: tuple[object, ...]


class EventModel:
    """Which prefixes each component holds, by the events that say so.

    Ids have to be unique to their namespace, as in the event format `dynamo`.

    Args:
        components: by the number of their group.
        page_size: units in a page.
        bigram: units are pairs.
        removed: told of every block that is lost, with its component.
    """

    def __init__(
        self,
        components: Iterable[str],
        *,
        page_size: int,
        bigram: bool,
        removed: Callable[[str, Prefix], None] = lambda component, prefix: None,
    ) -> None:
        self.components = list(components)
        self.page_size = page_size
        self.bigram = bigram
        self.live: dict[str, dict[Prefix, BlockHash]] = {component: {} for component in self.components}
        self._prefixes: dict[BlockHash, Prefix] = {}
        self._tell = removed

    def prefixes(self, tokens: list[int], namespace: Namespace) -> list[Prefix]:
        """The blocks of a prompt, one a page."""
        units: list[object] = list(itertools.pairwise(tokens)) if self.bigram else list(tokens)
        size = self.page_size
        return [Prefix(namespace, tuple(units[: end * size])) for end in range(1, len(units) // size + 1)]

    def cached(self, tokens: list[int], namespace: Namespace) -> list[Prefix]:
        """The blocks of a prompt that full attention holds, from the first on without a gap."""
        return list(itertools.takewhile(self.live["full"].__contains__, self.prefixes(tokens, namespace)))

    def usable(self, tokens: list[int], namespace: Namespace, window: int) -> list[Prefix]:
        """The blocks of a prompt that it can be continued from: the last ones held, the window before their end too,
        and a state at it."""
        cached = self.cached(tokens, namespace)
        ends = [end for end in range(1, len(cached) + 1) if self._continues(cached[:end], window)]
        return cached[: max(ends, default=0)]

    def window(self, prefix: list[Prefix], window: int) -> list[Prefix]:
        """The blocks that the window before a prefix's end touches."""
        pages = -(-window // self.page_size)
        return prefix[-pages:]

    def _continues(self, prefix: list[Prefix], window: int) -> bool:
        in_window = self.live.get("sliding_window")
        states = self.live.get("mamba")
        return (in_window is None or all(block in in_window for block in self.window(prefix, window))) and (
            states is None or prefix[-1] in states
        )

    def apply(self, events: Iterable[KVCacheEvent], namespace: Namespace) -> None:
        """Follow what a cache announced in one call on a namespace."""
        for event in events:
            match event:
                case BlockStored():
                    self._stored(event, namespace)
                case BlockRemoved():
                    component = self.components[event.group_idx or 0]
                    for block in event.block_hashes:
                        self._removed(component, self._prefixes[block])
                case AllBlocksCleared():
                    for held in self.live.values():
                        held.clear()

    def _stored(self, event: BlockStored, namespace: Namespace) -> None:
        component = self.components[event.group_idx or 0]
        above = Prefix(namespace, ())
        if event.parent_block_hash is not None:
            above = self._prefixes[event.parent_block_hash]
            assert above in self.live["full"], "a store under a block that is not held"
            assert above.namespace == namespace
        units: list[object] = list(event.token_ids)
        size = self.page_size
        assert len(units) == len(event.block_hashes) * size
        for index, block in enumerate(event.block_hashes):
            above = Prefix(namespace, above.units + tuple(units[index * size : (index + 1) * size]))
            assert above not in self.live[component], "a store of a block that is held"
            assert component == "full" or self.live["full"][above] == block
            self._prefixes[block] = above
            self.live[component][above] = block

    def _removed(self, component: str, prefix: Prefix) -> None:
        del self.live[component][prefix]
        others = [held for name, held in self.live.items() if name != "full"]
        assert component != "full" or not any(prefix in held for held in others), "less is held than is needed"
        self._tell(component, prefix)
