"""The prefix cache of hybrid models: any mix of layers on one tree."""

from collections.abc import Sequence

from kvevents.caches.cache import PrefixCache
from kvevents.caches.clock import StepClock
from kvevents.caches.eviction import EvictionPolicy
from kvevents.caches.layers import FullAttention, Layers, Mamba
from kvevents.caches.slots import SlotAllocator
from kvevents.errors import ConfigError
from kvevents.hashing import EventFormat
from kvevents.recorder import EventRecorder


class UnifiedRadixCache(PrefixCache):
    """A prefix cache for models of several kinds of layers: one tree, and on its nodes what each kind needs.

    Full attention is always among them. It decides what is in the tree, and what is announced by default: a window or
    a state that is lost inside the tree, or comes back, is nobody's news. A match ends where the prompt can be
    continued: where the window is whole and where there is a state.

    What `RadixCache` says about namespaces, event formats and slots holds here too. Each component has a name (`full`,
    `sliding_window`, `mamba`) and an allocator of its own, in `allocators`. `insert` without slots takes what it needs
    from all of them. With slots, the cache also keeps the `window_slots` of the units in `window_kept`, and the
    `state_slot` if `state_kept`; all others stay the caller's.

    Args:
        components: `FullAttention()`, `SlidingWindow(...)`, `Mamba(...)`, each at most once, in any order.
        page_size: units in a page.
        capacity: slots for full attention, which the tree and the engine's running requests share; a last part shorter
            than a page is not used.
        eviction_policy: of full attention: `lru`, `lfu`, `fifo`, `mru`, `filo`, `priority`, `slru`, `tlru`, or an
            `EvictionPolicy`. Windows and states go by their last use.
        bigram: cache pairs of neighbouring tokens (EAGLE): n tokens are n - 1 units. With `Mamba` it is off.
        event_format: `default` or `dynamo`, for the recorder that the cache makes itself.
        recorder: where changes are announced, with an event format and adapters' names of its own; one cache each.
        announce_groups: announce windows and states too, and with each event its group: `full` (0), then
            `sliding_window` and `mamba`. Then a router can see how much of a prompt can be reused: as far as `full`
            holds it, at the last point where the window before it is whole and where there is a state. The window on
            the wire counts the current token too, as models do. Only dialects of maps have a place for groups.
        keep_sessions: full-attention KV that inserts with a `session_id` came by is evicted after all other, what more
            sessions want later than what fewer do, until `close_session`.
        allocator: the slots for full attention, `capacity` of them; by default a `PagedSlotAllocator`.

    Raises:
        ConfigError: a setting is wrong in itself, or a kind of layers is there twice.
    """

    def __init__(
        self,
        *,
        components: Sequence[FullAttention | Layers] = (),
        page_size: int,
        capacity: int,
        eviction_policy: str | EvictionPolicy = "lru",
        bigram: bool = False,
        event_format: EventFormat = "default",
        recorder: EventRecorder | None = None,
        announce_groups: bool = False,
        keep_sessions: bool = False,
        allocator: SlotAllocator | None = None,
    ) -> None:
        kinds = [type(layers) for layers in components]
        if len(kinds) != len(set(kinds)):
            raise ConfigError(f"components: expected each kind once, got {', '.join(kind.__name__ for kind in kinds)}")
        super().__init__(
            page_size=page_size,
            capacity=capacity,
            eviction_policy=eviction_policy,
            bigram=bigram and Mamba not in kinds,
            event_format=event_format,
            recorder=recorder,
            allocator=allocator,
            keep_sessions=keep_sessions,
            clock=StepClock(),
            announce_groups=announce_groups,
            beside=[layers for layers in components if not isinstance(layers, FullAttention)],
        )
