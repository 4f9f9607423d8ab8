"""Settings of the simulated engine."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, Self, TypeAlias, get_args, get_origin

import msgspec

from kvevents.caches.hierarchical import WritePolicy
from kvevents.caches.slots import MOST_SLOTS
from kvevents.engine.timing import TimingModel
from kvevents.errors import ConfigError
from kvevents.events import StorageMedium
from kvevents.index import GroupSpec

CacheName: TypeAlias = Literal["radix", "swa", "mamba", "unified", "hierarchical", "block_pool"]
"""The caches that an engine can have."""

MOST_RANKS = 1024
MOST_PAGES = 2**26
"""Of a rank: a thousand million tokens at page size 16; more is a slip of the finger."""

ComponentName: TypeAlias = Literal["full", "swa", "mamba"]
"""The kinds of layers that the caches `unified` and `hierarchical` can be made for."""

StorageName: TypeAlias = Literal["DISK", "EXTERNAL"]
"""What a tier below host memory can be called in events."""

HYBRID_CACHES: tuple[CacheName, ...] = ("swa", "mamba", "unified")
"""Those for models with more than full attention."""

DEFAULT_SLIDING_WINDOW = 4096
DEFAULT_MAMBA_SLOTS = 512
DEFAULT_HOST_RATIO = 2
"""Host memory over KV cache, as SGLang has it."""
DEFAULT_STORAGE_RATIO = 2
"""The tier below host memory over that."""
IN_MEMORY = "memory"
"""The `storage` that is no folder."""
LEAST_MAMBA_SLOTS = 2
"""A request that runs alone has a state, and holds the one that it went on from."""

_ONLY_OF: Mapping[str, tuple[CacheName, ...]] = MappingProxyType(
    {
        "sliding_window": ("swa", "unified", "hierarchical"),
        "window_tokens": ("swa", "unified", "hierarchical"),
        "mamba_slots": ("mamba", "unified", "hierarchical"),
        "components": ("unified", "hierarchical"),
        "announce_groups": (*HYBRID_CACHES, "hierarchical"),
        "keep_sessions": ("radix", *HYBRID_CACHES, "hierarchical"),
        "host_tokens": ("hierarchical",),
        "write_policy": ("hierarchical",),
        "storage": ("hierarchical",),
        "storage_tokens": ("hierarchical",),
        "storage_medium": ("hierarchical",),
        "async_scheduling": ("block_pool",),
        "hash_seed": ("block_pool",),
    }
)
"""Settings that not all caches have."""


class KVEventsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where cache events go: the JSON that engines take as `--kv-events-config`.

    Attributes:
        publisher: `zmq`, or `null` for none.
        endpoint: PUB socket of rank 0; rank r takes port + r (tcp) or the suffix `_dp<r>`. Port 0 or `*` finds ports
            that are free for all ranks.
        replay_endpoint: ROUTER socket for late consumers, numbered like `endpoint`; None for none.
        topic: first frame of each message.
        buffer_steps: batches kept for replay.
        hwm: messages that ZMQ queues for each consumer before it drops.
        max_queue_size: batches that wait for the publisher's thread before it drops.
        bind: False makes the publisher connect, to a consumer that binds.
        snapshot: offer snapshots on the replay sockets, to consumers that come too late for a replay; where there is
            no replay endpoint there are none. False: as engines without kvevents.
        format: `dynamo` also makes salts and unnamed extra keys part of the published ids.
        keys: a publisher's private file as `kvevents keys` makes it; only consumers in the folder `clients` beside it
            can read. None: everybody, in the clear.
        enable_kv_cache_events: False is the same as the publisher `null`.
    """

    publisher: Literal["zmq", "null"] = "zmq"
    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    bind: bool = True
    snapshot: bool = True
    format: Literal["default", "dynamo"] = "default"
    keys: str | None = None
    enable_kv_cache_events: bool = True

    def __post_init__(self) -> None:
        for name, least in (("buffer_steps", 0), ("hwm", 0), ("max_queue_size", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: expected {least} or more, got {getattr(self, name)}")

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a config.

        Raises:
            ConfigError: not a JSON object, an unknown key, or a value of the wrong kind.
        """
        try:
            values = msgspec.json.decode(text, type=dict[str, object])
        except msgspec.DecodeError as error:
            raise ConfigError(f"kv-events-config: expected a JSON object, got {text!r}: {error}") from error
        unknown = sorted(values.keys() - set(cls.__struct_fields__))
        if unknown:
            raise ConfigError(
                f"kv-events-config: unknown key {', '.join(unknown)}; known are {', '.join(cls.__struct_fields__)}"
            )
        for field in msgspec.structs.fields(cls):
            choices = get_args(field.type) if get_origin(field.type) is Literal else ()
            if choices and field.name in values and values[field.name] not in choices:
                known = ", ".join(repr(choice) for choice in choices)
                raise ConfigError(
                    f"kv-events-config: {field.name}: expected one of {known}, got {values[field.name]!r}"
                )
        try:
            return msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"kv-events-config: {error}") from error

    @property
    def is_on(self) -> bool:
        """Whether events are recorded and published."""
        return self.publisher != "null" and self.enable_kv_cache_events


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as a whole.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        model_name: what `/v1/models` says.
        dp_size: data-parallel ranks, each with a scheduler, a cache and sockets of its own.
        cache: `block_pool` is an engine like vLLM: its cache, its scheduling, its events; all others are like SGLang,
            for models with full attention (`radix`), sliding windows besides (`swa`), state-space layers besides
            (`mamba`), or what `components` says (`unified`; `hierarchical`, with host memory as a tier below).
        page_size: tokens in a page of KV cache.
        max_total_tokens: KV cache of each rank, in tokens.
        eviction_policy: which cached prefixes go first when memory runs short; a block pool has only its own order.
        sliding_window: tokens before the next one that the sliding layers attend to; None: 4096.
        window_tokens: KV cache of those layers, in tokens; None: as many as `max_total_tokens`.
        mamba_slots: states that there is room for, those of running requests included; None: 512.
        components: kinds of layers (unified, hierarchical); full attention is always among them. Empty: all of them
            (unified), or full attention alone (hierarchical).
        keep_sessions: what requests with a `session_id` have cached goes last, until the session is closed.
        host_tokens: host memory of each rank, in tokens (hierarchical); None: twice `max_total_tokens`.
        write_policy: when what is cached is copied to host memory (hierarchical); None: `write_through`.
        storage: what keeps a copy of what is in host memory (hierarchical): `memory`, of this process, or a folder, in
            which each rank has its own and finds again what it has left there. None: nothing.
        storage_tokens: room in it for each rank, in tokens; None: twice `host_tokens`.
        storage_medium: what events call it; None: `EXTERNAL` for memory, `DISK` for a folder.
        announce_groups: announce windows and states too, so that a router knows how much can be reused.
        async_scheduling: plan each step while the one before it runs (block pool).
        hash_seed: PYTHONHASHSEED of the engine (block pool); None: not set.
        adapters: adapters that requests may name as their model or in `lora_path`, with the name that events have for
            each.
        chunked_prefill_size: prompt tokens a rank computes in one step at most.
        max_running_requests: requests that a rank runs at once at most.
        max_queued_requests: requests that wait for a rank at most; more are refused.
        stream_interval: outputs between two chunks of a stream; the first comes at once.
        timing: how long steps take.
        speed: divides every engine time.
        seed: of the outputs.
        kv_events: where cache events go; None: nowhere.
        max_body_bytes: larger HTTP bodies are refused.
        drain_s: seconds that running requests have to end after a signal.
    """

    host: str = "127.0.0.1"
    port: int = 30_000
    model_name: str = "kvevents-sim"
    dp_size: int = 1
    cache: CacheName = "radix"
    page_size: int = 64
    max_total_tokens: int = 1_000_000
    eviction_policy: str = "lru"
    sliding_window: int | None = None
    window_tokens: int | None = None
    mamba_slots: int | None = None
    components: tuple[ComponentName, ...] = ()
    announce_groups: bool = False
    keep_sessions: bool = False
    host_tokens: int | None = None
    write_policy: WritePolicy | None = None
    storage: str | None = None
    storage_tokens: int | None = None
    storage_medium: StorageName | None = None
    async_scheduling: bool = False
    hash_seed: str | None = None
    adapters: Mapping[str, str] = MappingProxyType({})
    chunked_prefill_size: int = 8192
    max_running_requests: int = 256
    max_queued_requests: int = 10_000
    stream_interval: int = 1
    timing: TimingModel = TimingModel()
    speed: float = 1.0
    seed: int = 0
    kv_events: KVEventsConfig | None = None
    max_body_bytes: int = 32 * 1024 * 1024
    drain_s: int = 2

    def __post_init__(self) -> None:
        positive = (
            "dp_size",
            "page_size",
            "max_total_tokens",
            "chunked_prefill_size",
            "max_running_requests",
            "max_queued_requests",
            "stream_interval",
            "max_body_bytes",
        )
        for name in positive:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected 1 or more, got {getattr(self, name)}")
        if not 0 < self.speed < float("inf"):
            raise ConfigError(f"speed: expected a number above 0, got {self.speed}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: expected 0 to 65535, got {self.port}")
        if self.max_total_tokens < self.page_size:
            raise ConfigError(
                f"max_total_tokens: expected at least a page ({self.page_size} tokens), got {self.max_total_tokens}"
            )
        most_tokens = min(MOST_PAGES * self.page_size, MOST_SLOTS)
        if self.max_total_tokens > most_tokens:
            raise ConfigError(f"max_total_tokens: expected at most {most_tokens}, got {self.max_total_tokens}")
        if self.dp_size > MOST_RANKS:
            raise ConfigError(f"dp_size: expected at most {MOST_RANKS}, got {self.dp_size}")
        self._check_cache()
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"seed: expected a signed 64-bit integer, got {self.seed}")

    @property
    def layers(self) -> tuple[ComponentName, ...]:
        """The kinds of layers that the cache is for, in the order of their groups."""
        if self.cache in {"unified", "hierarchical"}:
            chosen = self.components or (get_args(ComponentName) if self.cache == "unified" else ())
            return tuple(kind for kind in get_args(ComponentName) if kind == "full" or kind in chosen)
        return ("full", self.cache) if self.cache in {"swa", "mamba"} else ("full",)

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """The cache groups that events name, by number; none where they name none."""
        if not self.announce_groups:
            return ()
        specs = {
            "full": GroupSpec("full_attention"),
            # Events count the current token too, as models do.
            "swa": GroupSpec("sliding_window", self.window_size + 1),
            "mamba": GroupSpec("mamba"),
        }
        return tuple(specs[kind] for kind in self.layers)

    @property
    def window_size(self) -> int:
        """Tokens before the next one that a sliding window reaches; 0 without one."""
        if "swa" not in self.layers:
            return 0
        return DEFAULT_SLIDING_WINDOW if self.sliding_window is None else self.sliding_window

    @property
    def states(self) -> int:
        """States that there is room for; 0 without state-space layers."""
        if "mamba" not in self.layers:
            return 0
        return DEFAULT_MAMBA_SLOTS if self.mamba_slots is None else self.mamba_slots

    @property
    def host_capacity(self) -> int:
        """Tokens that host memory has room for; 0 without that tier."""
        if self.cache != "hierarchical":
            return 0
        return DEFAULT_HOST_RATIO * self.max_total_tokens if self.host_tokens is None else self.host_tokens

    @property
    def storage_capacity(self) -> int:
        """Tokens that the tier below host memory has room for; 0 without that tier."""
        if self.storage is None:
            return 0
        return DEFAULT_STORAGE_RATIO * self.host_capacity if self.storage_tokens is None else self.storage_tokens

    @property
    def storage_tier(self) -> StorageMedium:
        """What events call it."""
        return StorageMedium(self.storage_medium or ("EXTERNAL" if self.storage == IN_MEMORY else "DISK"))

    def _check_cache(self) -> None:
        if self.cache not in get_args(CacheName):
            raise ConfigError(f"cache: expected one of {', '.join(get_args(CacheName))}, got {self.cache!r}")
        for name, caches in _ONLY_OF.items():
            if getattr(self, name) not in (None, False, ()) and self.cache not in caches:
                raise ConfigError(
                    f"{name}: only an engine with the cache {' or '.join(caches)} has it, not {self.cache}"
                )
        self._check_layers()
        if self.cache == "hierarchical" and not self.page_size <= self.host_capacity <= MOST_SLOTS:
            raise ConfigError(f"host_tokens: expected {self.page_size} to {MOST_SLOTS}, got {self.host_capacity}")
        if self.write_policy is not None and self.write_policy not in get_args(WritePolicy):
            raise ConfigError(
                f"write_policy: expected one of {', '.join(get_args(WritePolicy))}, got {self.write_policy!r}"
            )
        self._check_storage()
        if self.cache == "block_pool":
            if self.eviction_policy != "lru":
                raise ConfigError(f"eviction_policy: a block pool has only its own order, not {self.eviction_policy}")
            if self.kv_events is not None and self.kv_events.format != "default":
                raise ConfigError(f"kv-events-config: format {self.kv_events.format!r} is SGLang's, not a block pool's")

    def _check_storage(self) -> None:
        if self.storage is None:
            for name in ("storage_tokens", "storage_medium"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"{name}: only with a storage, got {getattr(self, name)} without one")
            return
        if not self.storage:
            raise ConfigError(f"storage: expected {IN_MEMORY} or a folder, got nothing")
        if self.storage_medium not in (None, *get_args(StorageName)):
            raise ConfigError(
                f"storage_medium: expected one of {', '.join(get_args(StorageName))}, got {self.storage_medium!r}"
            )
        if not self.page_size <= self.storage_capacity <= MOST_SLOTS:
            raise ConfigError(f"storage_tokens: expected {self.page_size} to {MOST_SLOTS}, got {self.storage_capacity}")

    def _check_layers(self) -> None:
        known = get_args(ComponentName)
        if not set(self.components) <= set(known) or len(self.components) != len(set(self.components)):
            raise ConfigError(f"components: expected {', '.join(known)}, each once, got {', '.join(self.components)}")
        for name, kind in (("sliding_window", "swa"), ("window_tokens", "swa"), ("mamba_slots", "mamba")):
            if (
                getattr(self, name) is not None
                and self.cache in {"unified", "hierarchical"}
                and kind not in self.layers
            ):
                raise ConfigError(f"{name}: only with {kind} among the components, got {', '.join(self.layers)}")
        if "swa" in self.layers and not 1 <= self.window_size <= MOST_SLOTS:
            raise ConfigError(f"sliding_window: expected 1 to {MOST_SLOTS}, got {self.window_size}")
        if "mamba" in self.layers and not LEAST_MAMBA_SLOTS <= self.states <= MOST_PAGES:
            raise ConfigError(f"mamba_slots: expected {LEAST_MAMBA_SLOTS} to {MOST_PAGES}, got {self.states}")
        if self.window_tokens is not None:
            # A request alone may hold a window in the tree and one of its own, and the chunk that it computes.
            pages = 2 * -(-self.window_size // self.page_size) + -(-self.chunked_prefill_size // self.page_size) + 1
            least = min(pages * self.page_size, self.max_total_tokens)
            if not least <= self.window_tokens <= self.max_total_tokens:
                raise ConfigError(
                    f"window_tokens: expected {least}, for two windows and a chunk of prefill, to "
                    f"{self.max_total_tokens}, as many as max_total_tokens, got {self.window_tokens}"
                )
