"""The prefix cache of full attention."""

from kvevents.caches.cache import PrefixCache
from kvevents.caches.clock import WalkClock
from kvevents.caches.eviction import EvictionPolicy
from kvevents.caches.slots import SlotAllocator
from kvevents.hashing import EventFormat
from kvevents.recorder import EventRecorder


class RadixCache(PrefixCache):
    """A prefix cache for full attention: keeps the KV of past prompts by the page and announces each change.

    Prompts are cut to whole pages; what is left over is neither cached nor announced. Prompts in different namespaces
    (`extra_key`, `cache_salt`) share nothing. Not thread-safe: one cache is used by one thread.

    In the default event format two `extra_key`s without a registered adapter name publish the same ids for the same
    tokens, so that a consumer has to count. `event_format="dynamo"` gives each namespace ids of its own.
    In both, an event says nothing of an `extra_key` that has no name: whoever goes by tokens, as `PrefixIndex` does,
    takes such blocks for the base model's. Register a name for each (`lora_names` of the recorder), or use a salt.

    Who owns slots: `insert` without slots takes them from `allocator` itself. An engine that computes first and caches
    later takes slots by `allocate`, passes those of the whole prompt to `insert`, and the cache keeps
    `slots[prefix_length:length]` of them; all others stay the caller's, who gives back the ones that were its own by
    `allocator.free`. What the cache keeps it gives back by eviction.

    Args:
        page_size: units in a page.
        capacity: slots of the KV memory, which the tree and the engine's running requests share; a last part shorter
            than a page is not used.
        eviction_policy: `lru`, `lfu`, `fifo`, `mru`, `filo`, `priority`, `slru`, `tlru`, or an `EvictionPolicy`.
        bigram: cache pairs of neighbouring tokens (EAGLE): n tokens are n - 1 units.
        event_format: `default` or `dynamo`, for the recorder that the cache makes itself.
        recorder: where changes are announced, with an event format and adapters' names of its own; one cache each.
        announce_groups: accepted as by every cache; changes nothing here, since full attention is the only group and
            its events say all there is to know.
        keep_sessions: full-attention KV that inserts with a `session_id` came by is evicted after all other, what more
            sessions want later than what fewer do, until `close_session`.
        allocator: the KV memory, `capacity` slots; by default a `PagedSlotAllocator`.

    Raises:
        ConfigError: a setting is wrong in itself.
    """

    def __init__(
        self,
        *,
        page_size: int,
        capacity: int,
        eviction_policy: str | EvictionPolicy = "lru",
        bigram: bool = False,
        event_format: EventFormat = "default",
        recorder: EventRecorder | None = None,
        announce_groups: bool = False,  # noqa: ARG002 - common to all caches
        keep_sessions: bool = False,
        allocator: SlotAllocator | None = None,
    ) -> None:
        super().__init__(
            page_size=page_size,
            capacity=capacity,
            eviction_policy=eviction_policy,
            bigram=bigram,
            event_format=event_format,
            recorder=recorder,
            allocator=allocator,
            keep_sessions=keep_sessions,
            clock=WalkClock(),
        )
