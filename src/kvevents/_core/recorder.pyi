"""`kvevents._core.recorder`: see `kvevents.recorder`."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, final

from _typeshed import ReadableBuffer

from kvevents._core.hashing import HashChain
from kvevents._core.tokens import TokenPages
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored

__all__ = ["AdapterNames", "CacheGroup", "EventRecorder", "RecorderStats", "merges"]

_Tokens: TypeAlias = Sequence[int] | ReadableBuffer | TokenPages
_EventFormat: TypeAlias = Literal["default", "dynamo"]
# Public as kvevents.wire.Dialect; stubs import no higher layer.
_Dialect: TypeAlias = Literal["sglang", "sglang-array", "vllm", "vllm-array"]

@final
class EventRecorder:
    """Collects what a cache did and gives it out in batches: the fast way to announce events. Thread-safe.

    Events are coalesced as they are recorded and encoded without a Python object for a page or a token. There is one
    queue with two ways out, `take` and `take_batch`. Thread-safe; a disabled recorder ignores every call.

    In the event format `default` the ids of an extra key depend on whether its adapter has a registered name. A name
    that is registered while pages of the extra key are live takes effect when none of them is left. In the event format
    `dynamo` ids do not depend on names, and it takes effect at once.

    Args:
        page_size: tokens in a page, or pairs for bigrams; chains of another page size are refused.
        coalesce: how far events are merged. At every level all consumers hold the same after each batch.
            `off`: not at all.
            `adjacent`: an event is folded into the one right before it where both are removals from one tier, or
            stores of which the second continues the first with all other fields equal.
            `chain`: into any earlier event of the batch that it continues in that way, if no event in between names
            one of its blocks or its parent. Requests interleave, so this makes fewer events; a consumer that knows
            only the rule of `adjacent` can read them.
            `compact`: besides, stores and removals of a batch that undo each other are left out. The recorder counts
            what is held, which takes memory for every block held.
        event_format: how the ids of a namespace are announced: `default` wraps them only where an adapter has a
            registered name, `dynamo` wherever there is an extra key or a salt: the choice for consumers that go by ids.
        enabled: False makes every call a no-op.
        lora_names: adapter names by extra key, looked up when an event is recorded; in the format `dynamo` also by the
            last 32 characters of the extra key. May be changed while the recorder is used. An extra key without a
            name is not said in events, in either format: an index that goes by tokens takes its blocks for the base
            model's.
        max_event_blocks: how many blocks a merged event may have.
        max_event_bytes: how many bytes a merged event may have on the wire. A single event that is larger stays whole.

    Raises:
        ConfigError: a setting is not one of its choices.
    """

    def __new__(
        cls,
        page_size: int,
        *,
        coalesce: Literal["off", "adjacent", "chain", "compact"] = "adjacent",
        event_format: _EventFormat = "default",
        enabled: bool = True,
        lora_names: Mapping[str, str] | None = None,
        max_event_blocks: int = 16_384,
        max_event_bytes: int = 1_048_576,
    ) -> EventRecorder: ...
    def store(
        self,
        chain: HashChain,
        tokens: _Tokens,
        *,
        medium: str = "GPU",
        session_id: str | None = None,
        group: CacheGroup | None = None,
    ) -> None:
        """Record that blocks are held now. An empty chain says nothing.

        Args:
            chain: the blocks.
            tokens: exactly their tokens, as they were given to `HashChain.extend`.
            medium: the tier, a `StorageMedium` or another name.
            session_id: attribution only.
            group: the cache group that holds them, in hybrid models.

        Raises:
            ConfigError: the chain has another page size than the recorder.
            ValueError: there are more or fewer tokens than the chain has, or a token is negative.
        """

    def remove(self, chain: HashChain, *, medium: str = "GPU", group: CacheGroup | None = None) -> None:
        """Record that blocks are no longer held in a tier, by a cache group. An empty chain says nothing.

        Raises:
            ConfigError: the chain has another page size than the recorder.
        """

    def clear(self) -> None:
        """Record that nothing is held any more, in any tier."""

    def take(self) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        """Take everything in the queue as events, oldest first."""

    def take_batch(
        self,
        *,
        ts: float | None = None,
        dp_rank: int | None = 0,
        dialect: _Dialect = "sglang",
    ) -> bytes | None:
        """Take everything in the queue as an encoded batch; None if there is nothing.

        Args:
            ts: the batch's time in unix seconds; now, if None.
            dp_rank: the data-parallel rank that announces.
            dialect: how events are written, as in `kvevents.wire.encode_batch`. Those of vLLM have unsigned ids, and
                the salt and the adapter's name in `extra_keys`.

        Raises:
            ConfigError: the dialect is not one of its choices, or is one of arrays that have no place for a field that
                was recorded. Nothing is taken then.
        """

    def announced_ids(self, chain: HashChain, /) -> memoryview:
        """The ids (int64) under which the blocks of a chain are announced now."""

    def stats(self) -> RecorderStats:
        """What was recorded so far, taken or not."""

    @property
    def enabled(self) -> bool:
        """Whether calls do anything."""

    @property
    def page_size(self) -> int:
        """Tokens (pairs, for bigrams) in a page."""

    @property
    def pending(self) -> int:
        """Events in the queue."""

@final
class RecorderStats:
    """Totals of an `EventRecorder` since it was made.

    Attributes:
        stored_pages: pages announced as stored, each tier for itself.
        removed_pages: pages announced as removed.
        recorded_events: events before merging.
        recorded_bytes: their bytes in the dialect `sglang`, within a few bytes an event.
        coalesced_events: events after merging.
        coalesced_bytes: their bytes.
        cancelled_pages: announcements of a page that were left out of what was taken because they undo each other
            (level `compact`).
    """

    @property
    def stored_pages(self) -> int: ...
    @property
    def removed_pages(self) -> int: ...
    @property
    def recorded_events(self) -> int: ...
    @property
    def recorded_bytes(self) -> int: ...
    @property
    def coalesced_events(self) -> int: ...
    @property
    def coalesced_bytes(self) -> int: ...
    @property
    def cancelled_pages(self) -> int: ...

@final
class CacheGroup:
    """A cache group of a hybrid model, as events name it.

    Args:
        index: its number.
        kind: its kind, `full_attention`, `sliding_window` or `mamba` for instance.
        sliding_window: its window in tokens, the current one included.
    """

    def __new__(cls, index: int, kind: str, *, sliding_window: int | None = None) -> CacheGroup: ...
    @property
    def index(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def sliding_window(self) -> int | None: ...

@final
class AdapterNames:
    """The adapter names under which live pages were announced.

    An extra key keeps the name (or the lack of one) of its first live page until none is left, so that a name that is
    registered late does not change what removals call the pages stored before. Thread-safe.
    """

    def __new__(cls) -> AdapterNames: ...
    def store(
        self, extra_key: str, pages: int, lora_names: Mapping[str, str] | None, event_format: _EventFormat
    ) -> str | None:
        """The name for pages that are stored now."""

    def remove(
        self, extra_key: str, pages: int, lora_names: Mapping[str, str] | None, event_format: _EventFormat
    ) -> str | None:
        """The name for pages that are removed now."""

    def clear(self) -> None:
        """Nothing is held any more."""

def merges(tail: object, event: object, /) -> bool:
    """Whether `event` may be folded into `tail`, the event right before it: the rule of the level `adjacent`.

    True where both are removals, or both are aligned stores of which the second continues the first, and every field
    but hashes, parent, tokens and the values of extra keys is equal. Events are structs of any class that has fields
    of those names; anything else merges with nothing.
    """
