"""The block pool under any sequence of calls, against a plain model of it."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from block_pool_model import Digest, PoolModel, Removed, Stored, digests
from kvevents.caches import BlockPoolCache, CachedRun
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from residency import Residency

SEED = "7"
TOKENS = st.lists(st.sampled_from([0, 1, 30, 300, 70_000, 2**40]), max_size=12)


@dataclass
class Running:
    """A sequence that holds blocks."""

    tokens: list[int]
    salt: str | None
    blocks: list[int]
    pages: list[Digest] = field(default_factory=list)
    published: int = 0


def plain(event: KVCacheEvent) -> Stored | Removed:
    """An event in the model's words."""
    match event:
        case BlockStored():
            blocks = [block for block in event.block_hashes if isinstance(block, int)]
            parent = event.parent_block_hash
            assert parent is None or isinstance(parent, int)
            return Stored(blocks, parent)
        case BlockRemoved():
            (block,) = event.block_hashes
            assert isinstance(block, int)
            return Removed(block)
    raise AssertionError(event)


class BlockPoolMachine(RuleBasedStateMachine):
    running = Bundle("running")
    runs = Bundle("runs")

    @initialize(num_blocks=st.integers(2, 12), page_size=st.integers(1, 3), prompts=st.lists(TOKENS, min_size=1))
    def build(self, num_blocks: int, page_size: int, prompts: list[list[int]]) -> None:
        self.cache = BlockPoolCache(num_blocks=num_blocks, page_size=page_size, hash_seed=SEED)
        self.model = PoolModel(num_blocks)
        self.page_size = page_size
        self.prompts = prompts
        self.residency = Residency()
        self.locked: list[CachedRun] = []
        self.live = 0

    @rule(target=running, which=st.integers(0), tail=TOKENS, salt=st.sampled_from([None, "", "s"]))
    def admit(self, which: int, tail: list[int], salt: str | None) -> object:
        tokens = self.prompts[which % len(self.prompts)] + tail
        sequence = Running(tokens, salt, [], digests(tokens, self.page_size, seed=SEED, salt=salt))
        chain = self.cache.chain(tokens, cache_salt=salt)
        hits = self.cache.lookup(chain)
        assert hits.tolist() == self.model.lookup(sequence.pages)
        parked = sum(not self.model.holders[block] for block in hits)
        assert self.cache.parked(hits) == parked
        need = -(-len(tokens) // self.page_size) - len(hits)
        if need > self.cache.free_blocks - parked:
            return multiple()
        self.cache.hold(hits)
        self.model.hold(hits.tolist())
        sequence.blocks += hits.tolist()
        sequence.published = len(hits)
        self._grow(sequence, need)
        self.live += 1
        return sequence

    @rule(sequence=running, more=TOKENS)
    def decode(self, sequence: Running, more: list[int]) -> None:
        tokens = sequence.tokens + more
        need = -(-len(tokens) // self.page_size) - len(sequence.blocks)
        if need <= self.cache.free_blocks:
            sequence.tokens = tokens
            sequence.pages = digests(tokens, self.page_size, seed=SEED, salt=sequence.salt)
            self._grow(sequence, need)

    @rule(sequence=consumes(running))
    def end(self, sequence: Running) -> None:
        self.cache.release(sequence.blocks)
        self.model.release(sequence.blocks)
        self.live -= 1

    @rule(target=runs, which=st.integers(0))
    def lock_a_match(self, which: int) -> CachedRun:
        tokens = self.prompts[which % len(self.prompts)]
        order = self.cache.reuse_order().tolist()
        match = self.cache.match_prefix(tokens)
        blocks = self.model.lookup(digests(tokens, self.page_size, seed=SEED))
        assert match.node.blocks.tolist() == blocks
        assert match.length == len(blocks) * self.page_size
        slots = [block * self.page_size + at for block in blocks for at in range(self.page_size)]
        assert match.slots.tolist() == slots
        assert self.cache.reuse_order().tolist() == order
        self.cache.lock(match.node)
        self.model.hold(blocks)
        self.live += 1
        return match.node

    @rule(run=consumes(runs))
    def unlock(self, run: CachedRun) -> None:
        self.cache.unlock(run)
        self.model.release(run.blocks.tolist())
        self.live -= 1

    @rule(count=st.integers(-1, 8))
    def evict(self, count: int) -> None:
        before = self.cache.total
        freed = self.cache.evict(count).tokens
        self.model.evict(-(-max(count, 0) // self.page_size))
        assert self.cache.total == before - freed

    @rule()
    def reset(self) -> None:
        if self.live and self.cache.free_blocks * self.page_size < self.cache.capacity:
            return
        self.cache.reset()
        self.model.content.clear()
        assert self.cache.take_events() == [AllBlocksCleared()]
        self.residency.apply([AllBlocksCleared()])

    @invariant()
    def everything_agrees(self) -> None:
        self.cache.check_integrity()
        events = self.cache.take_events()
        assert [plain(event) for event in events] == self.model.events
        self.model.events.clear()
        self.residency.apply(events)
        held = {block % 2**64 for block, _ in self.cache.holdings()}
        assert held == {block for block, _ in self.residency.held()}
        assert self.cache.reuse_order().tolist() == self.model.queue
        assert self.cache.total == len(self.model.content) * self.page_size
        evictable = sum(not self.model.holders[block] for block in self.model.content)
        assert self.cache.evictable == evictable * self.page_size
        assert self.cache.protected == self.cache.total - self.cache.evictable

    def _grow(self, sequence: Running, need: int) -> None:
        taken = self.cache.take(need).tolist()
        assert taken == self.model.take(need)
        sequence.blocks += taken
        start, end = sequence.published, len(sequence.pages)
        if start == end:
            return
        chain = self.cache.chain(sequence.tokens, cache_salt=sequence.salt)
        whole = sequence.tokens[start * self.page_size : end * self.page_size]
        self.cache.publish(sequence.blocks[start:end], chain.split(start)[1], whole)
        parent = sequence.pages[start - 1] if start else None
        self.model.publish(sequence.blocks[start:end], sequence.pages[start:end], parent)
        sequence.published = end


TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = settings(stateful_step_count=40)
