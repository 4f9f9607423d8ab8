"""Settings of the simulated engine."""

from typing import Literal, Self, TypeAlias, get_args

import msgspec

from kvevents.caches.slots import MOST_SLOTS
from kvevents.engine.timing import TimingModel
from kvevents.errors import ConfigError

CacheName: TypeAlias = Literal["radix", "block_pool"]
"""The caches that an engine can have."""

MOST_RANKS = 1024
MOST_PAGES = 2**26
"""Of a rank: a thousand million tokens at page size 16; more is a slip of the finger."""


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
        format: `dynamo` also makes salts and unnamed extra keys part of the published ids.
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
    format: Literal["default", "dynamo"] = "default"
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
        cache: `radix` is an engine like SGLang; `block_pool` one like vLLM: its cache, its scheduling, its events.
        page_size: tokens in a page of KV cache.
        max_total_tokens: KV cache of each rank, in tokens.
        eviction_policy: which cached prefixes go first when memory runs short; a block pool has only its own order.
        async_scheduling: plan each step while the one before it runs (block pool).
        hash_seed: PYTHONHASHSEED of the engine (block pool); None: not set.
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
    async_scheduling: bool = False
    hash_seed: str | None = None
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

    def _check_cache(self) -> None:
        if self.cache not in get_args(CacheName):
            raise ConfigError(f"cache: expected one of {', '.join(get_args(CacheName))}, got {self.cache!r}")
        if self.cache == "block_pool":
            if self.eviction_policy != "lru":
                raise ConfigError(f"eviction_policy: a block pool has only its own order, not {self.eviction_policy}")
            if self.kv_events is not None and self.kv_events.format != "default":
                raise ConfigError(f"kv-events-config: format {self.kv_events.format!r} is SGLang's, not a block pool's")
            return
        for name in ("async_scheduling", "hash_seed"):
            if getattr(self, name):
                raise ConfigError(f"{name}: only an engine with the cache block_pool has it, not {self.cache}")
