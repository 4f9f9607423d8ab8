"""Plain models for caches with tiers: what a consumer knows, and a store that fails, is late or is full."""

import hashlib
import itertools
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from cache_model import Namespace, Prefix
from kvevents.caches import MemoryStore, SlotMemory, StoredBlock
from kvevents.errors import KVEventsError
from kvevents.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent

CALLS = ("backup", "load", "write", "read")
"""What a `MoodyStore` can be told to fail at."""

TIERS = ("GPU", "CPU_PINNED", "DISK", "EXTERNAL")


class TierModel:
    """Which prefixes each component holds in each tier, by the events that say so.

    Ids have to be unique to their namespace, as in the event format `dynamo`.

    Args:
        components: by the number of their group.
        page_size: units in a page.
        prefixes: what ids mean, as learnt so far.
    """

    def __init__(self, components: Iterable[str], *, page_size: int, prefixes: dict[BlockHash, Prefix]) -> None:
        self.components = list(components)
        self.page_size = page_size
        self.live: dict[tuple[str, str], dict[Prefix, BlockHash]] = defaultdict(dict)
        self.prefixes = prefixes

    def blocks(self, tokens: list[int], namespace: Namespace) -> list[Prefix]:
        """The blocks of a prompt, one a page."""
        size = self.page_size
        return [Prefix(namespace, tuple(tokens[: end * size])) for end in range(1, len(tokens) // size + 1)]

    def holds(self, component: str, block: Prefix, tiers: Iterable[str] = TIERS) -> bool:
        """Whether one of some tiers has it."""
        return any(block in self.live[tier, component] for tier in tiers)

    def usable(self, blocks: list[Prefix], window: int, tiers: Sequence[str] = TIERS) -> list[Prefix]:
        """The blocks of a prompt that it can be continued from, were all these tiers one."""
        held = list(itertools.takewhile(lambda block: self.holds("full", block, tiers), blocks))
        pages = -(-window // self.page_size)
        for end in range(len(held), 0, -1):
            in_window = "sliding_window" not in self.components or all(
                self.holds("sliding_window", block, tiers) for block in held[max(0, end - pages) : end]
            )
            if in_window and ("mamba" not in self.components or self.holds("mamba", held[end - 1], tiers)):
                return held[:end]
        return []

    def apply(self, events: Iterable[KVCacheEvent], namespace: Namespace) -> None:
        """Follow what a cache announced; blocks that are new are those of one namespace."""
        for event in events:
            match event:
                case BlockStored():
                    self._stored(event, namespace)
                case BlockRemoved():
                    held = self.live[event.medium or "GPU", self.components[event.group_idx or 0]]
                    for block in event.block_hashes:
                        del held[self.prefixes[block]]
                case AllBlocksCleared():
                    self.live.clear()

    def _stored(self, event: BlockStored, namespace: Namespace) -> None:
        held = self.live[event.medium or "GPU", self.components[event.group_idx or 0]]
        above = Prefix(namespace, ())
        if event.parent_block_hash is not None:
            above = self.prefixes[event.parent_block_hash]
        size = self.page_size
        for index, block in enumerate(event.block_hashes):
            known = self.prefixes.get(block)
            above = known or Prefix(
                above.namespace, above.units + tuple(event.token_ids[index * size : (index + 1) * size])
            )
            assert above not in held, "a store of a block that is held"
            self.prefixes[block] = above
            held[above] = block


class LateCopy(Future[None]):
    """A copy that is made when it is asked for, or when somebody waits for it."""

    def __init__(self, make: Callable[[], None]) -> None:
        super().__init__()
        self._make = make

    def finish(self) -> None:
        if not self.done():
            try:
                self._make()
            except Exception as error:
                self.set_exception(error)
            else:
                self.set_result(None)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.finish()
        return super().exception(timeout)

    def result(self, timeout: float | None = None) -> None:
        self.finish()
        super().result(timeout)


class MoodyStore(MemoryStore):
    """A store that fails or is late as it is told: `moods` by the name of the call, each for the next call only."""

    def __init__(self, capacity: int, *, device: dict[str, SlotMemory], host: dict[str, SlotMemory]) -> None:
        super().__init__(capacity, device=device, host=host)
        self.moods: dict[str, str] = {}
        self.late: list[LateCopy] = []

    def copy(  # type: ignore[override]  # a store may answer with a future
        self, component: str, source: "array[int]", target: "array[int]", *, to_host: bool
    ) -> Future[None] | None:
        copy = super().copy
        return self._do("backup" if to_host else "load", lambda: copy(component, source, target, to_host=to_host))

    def write(self, blocks: Sequence[StoredBlock], source: "array[int]") -> Future[None] | None:  # type: ignore[override]
        write = super().write
        return self._do("write", lambda: write(blocks, source))

    def read(self, blocks: Sequence[StoredBlock], target: "array[int]") -> Future[None] | None:  # type: ignore[override]
        read = super().read
        return self._do("read", lambda: read(blocks, target))

    def finish(self) -> None:
        """What was late is done."""
        for copy in self.late:
            copy.finish()
        self.late.clear()

    def _do(self, call: str, make: Callable[[], None]) -> Future[None] | None:
        mood = self.moods.pop(call, "fine")
        if mood == "fine":
            make()
            return None
        if mood == "fails":
            raise KVEventsError(f"{call}: told to fail")
        late = LateCopy(make if mood == "late" else self._fail)
        if mood == "is cancelled":
            late.cancel()
        self.late.append(late)
        return late

    def _fail(self) -> None:
        raise KVEventsError("told to fail late")


def content(block: Prefix, component: str, page_size: int) -> bytes:
    """What the slots of a block hold: 8 bytes each, different for all blocks and slots."""
    name = f"{component} {block}".encode()
    return b"".join(
        hashlib.blake2b(name + bytes([unit]), digest_size=8).digest()
        for unit in range(1 if component == "mamba" else page_size)
    )
