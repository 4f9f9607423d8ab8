"""When a recorded engine looked a request up in its cache, and what an index fed with its events says at that moment.

vLLM looks a request up when it admits it, and announces what it then computes. So the index is asked just before the
request's *own first store*: the first event that stores blocks of its prompt which nobody before it is known to be
computing. A request that found all its blocks stores nothing: it was looked up at some moment before its answer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

from kvevents.events import BlockHash, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.index import PrefixIndex


class Prompt(NamedTuple):
    """A request as the engine got it.

    Attributes:
        id: of the request.
        tokens: the prompt.
        lora_name: adapter.
        cache_salt: tenant's salt.
        asked: when it was sent, unix seconds.
        answered: when its answer had come.
        reported: tokens that the engine says it found cached.
    """

    id: int
    tokens: Sequence[int]
    lora_name: str | None
    cache_salt: str | None
    asked: float
    answered: float
    reported: int


class Lookup:
    """What the index said of a request."""

    def __init__(self, prompt: Prompt, alone: bool) -> None:
        self.prompt = prompt
        self.is_alone = alone
        """No other request was in flight from its beginning to its end."""
        self.at_request: set[int] = set()
        self.at_own_store: int | None = None
        self.seen: set[int] = set()
        """What the index said at any moment until the answer."""

    @property
    def predicted(self) -> set[int]:
        """What the engine can have found: one number wherever the moment is known."""
        if self.at_own_store is not None:
            return {self.at_own_store}
        return self.at_request if self.is_alone else self.seen


class Numbers:
    """A number for each block: the same for the same prefix in the same namespace."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._numbers: dict[tuple[object, ...], int] = {}
        self._named: dict[BlockHash, int] = {}

    def prompt(self, prompt: Prompt) -> list[int]:
        """Of the whole blocks of a prompt."""
        return self._below((prompt.lora_name, prompt.cache_salt or None), prompt.tokens)

    def stored(self, event: BlockStored) -> tuple[int | None, list[int]]:
        """Of the block above a store, and of its blocks; they carry their namespace."""
        above: Any
        if event.parent_block_hash is None:
            first = event.extra_keys[0] if event.extra_keys else None
            texts = [key for key in first or () if key != event.lora_name]
            above = event.lora_name, (texts[0] if texts else None)
        else:
            above = self._named[event.parent_block_hash]
        numbers = self._below(above, [token for token in event.token_ids if isinstance(token, int)])
        self._named.update(zip(event.block_hashes, numbers, strict=True))
        return (None if event.parent_block_hash is None else above), numbers

    def _below(self, above: object, tokens: Sequence[int]) -> list[int]:
        numbers = []
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            block = above, *tokens[start : start + self.block_size]
            above = self._numbers.setdefault(block, len(self._numbers))
            numbers.append(above)
        return numbers


class InFlight:
    """A request between its sending and its answer."""

    def __init__(self, prompt: Prompt, numbers: list[int]) -> None:
        self.prompt = prompt
        self.numbers = numbers
        self.announced = 0
        """Leading blocks that were found or are announced, once the request is admitted."""

    def begins_with(self, above: int | None, blocks: list[int]) -> bool:
        """Whether a store may be the first own one: blocks below those that were found."""
        if above is not None and above not in self.numbers:
            return False
        start = 0 if above is None else self.numbers.index(above) + 1
        self.announced = start + len(blocks)
        return start < len(self.numbers) and is_part(blocks, self.numbers, start)

    def goes_on_with(self, blocks: list[int]) -> bool:
        """Whether a store is the next own one."""
        start = self.announced
        if start >= len(self.numbers) or not is_part(blocks, self.numbers, start):
            return False
        self.announced = start + len(blocks)
        return True


class Admissions:
    """Which request a store is the first own one of."""

    def __init__(self, block_size: int) -> None:
        self._numbers = Numbers(block_size)
        self._waiting: list[InFlight] = []
        self._running: list[InFlight] = []

    def ask(self, prompt: Prompt) -> None:
        """A request is sent."""
        self._waiting.append(InFlight(prompt, self._numbers.prompt(prompt)))

    def follow(self, event: BlockStored, at: float) -> list[InFlight]:
        """The requests that may announce themselves by a store at this time; several if their prompts are the same."""
        above, blocks = self._numbers.stored(event)
        self._running = [request for request in self._running if request.prompt.answered >= at]
        self._waiting = [request for request in self._waiting if request.prompt.answered >= at]
        if any(request.goes_on_with(blocks) for request in self._running):
            return []
        sent = (request for request in self._waiting if request.prompt.asked <= at)
        found = [request for request in sent if request.begins_with(above, blocks)]
        return [request for request in found if request.numbers == found[0].numbers]

    def admit(self, request: InFlight) -> None:
        """It is this request's store that was followed last."""
        self._waiting.remove(request)
        self._running.append(request)


def is_part(blocks: list[int], numbers: list[int], start: int) -> bool:
    """Whether blocks are those of a prompt from `start` on; they may go on into its outputs."""
    part = numbers[start : start + len(blocks)]
    return blocks[: len(part)] == part


class Oracle:
    """An index that is fed with recorded batches, and asked for each request."""

    def __init__(self, block_size: int, ranks: int = 1, residency: Any = "counted") -> None:
        self.block_size = block_size
        self.ranks = ranks
        self.index = PrefixIndex(block_size)
        self.index.add_worker("w", block_size=block_size, residency=residency)
        self.lookups: dict[int, Lookup] = {}
        self._admissions = Admissions(block_size)
        self._open: dict[int, Lookup] = {}

    def ask(self, prompt: Prompt) -> None:
        """A request is sent."""
        for other in self._open.values():
            other.is_alone = False
        lookup = Lookup(prompt, alone=not self._open)
        lookup.at_request = self.found(prompt)
        lookup.seen |= lookup.at_request
        self.lookups[prompt.id] = self._open[prompt.id] = lookup
        self._admissions.ask(prompt)

    def answer(self, prompt_id: int) -> None:
        """A request is answered, though what was published before that may still be on its way."""
        self._open.pop(prompt_id, None)

    def apply(self, batch: KVEventBatch) -> None:
        """A batch has come: asked for the requests that it is about, each just before its first store."""
        before: list[KVCacheEvent] = []
        for event in batch.events:
            own = self._admissions.follow(event, batch.ts) if is_told(event) else []
            if own:
                # A masked group announces the same blocks just before.
                step = [event]
                while before and is_same_run(before[-1], event):
                    step.insert(0, before.pop())
                self._feed(batch, before)
                before = step[:-1]
                self._admit(own, batch.attn_dp_rank)
            before.append(event)
        self._feed(batch, before)
        for lookup in self._open.values():
            lookup.seen |= self.found(lookup.prompt)

    def _admit(self, same: list[InFlight], rank: int | None) -> None:
        """One of requests with the same prompt is looked up; which of them, only what they report can tell."""
        (found,) = self.found(same[0].prompt, rank)
        own = next((request for request in same if request.prompt.reported == found), same[0])
        self._admissions.admit(own)
        self.lookups[own.prompt.id].at_own_store = found

    def _feed(self, batch: KVEventBatch, events: list[KVCacheEvent]) -> None:
        if events:
            report = self.index.apply("w", KVEventBatch(batch.ts, events, batch.attn_dp_rank))
            assert (report.error, report.skipped) == (None, [])

    def found(self, prompt: Prompt, rank: int | None = None) -> set[int]:
        """What the engine will say it found, by what the index says; without a rank: for each."""
        matches = self.index.match(prompt.tokens, lora_name=prompt.lora_name, cache_salt=prompt.cache_salt)
        # An engine always computes the last token itself.
        limit = (len(prompt.tokens) - 1) // self.block_size
        usable = {match.dp_rank or 0: match.usable for match in matches}
        ranks = range(self.ranks) if rank is None else [rank]
        return {min(usable.get(rank, 0), limit) * self.block_size for rank in ranks}


def is_told(event: KVCacheEvent) -> TypeGuard[BlockStored]:
    """Whether an event is a store that carries its namespace."""
    if not isinstance(event, BlockStored) or event.medium != "GPU":
        return False
    return event.kv_cache_spec_kind in {None, "full_attention"}


def is_same_run(other: KVCacheEvent, event: KVCacheEvent) -> bool:
    """Whether two stores are about the same tokens of one prompt, in two groups."""
    if not isinstance(other, BlockStored) or not isinstance(event, BlockStored) or is_told(other):
        return False
    return (other.parent_block_hash, other.token_ids) == (event.parent_block_hash, event.token_ids)
