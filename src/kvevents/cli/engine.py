"""`kvevents engine`: a simulated inference engine."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter, Token

from kvevents.caches import WritePolicy
from kvevents.cli.output import Json, print_json
from kvevents.engine.config import CacheName, ComponentName, EngineConfig, KVEventsConfig, StorageName
from kvevents.engine.server import run_engine
from kvevents.engine.timing import TimingModel


def _split(_type: object, tokens: Sequence[Token]) -> tuple[str, ...]:
    return tuple(word for token in tokens for word in token.value.split(","))


Components = Annotated[tuple[ComponentName, ...], Parameter(negative=(), n_tokens=1, converter=_split)]
_CONFIG = EngineConfig()
_TIMING = _CONFIG.timing


def engine(
    *,
    host: str = _CONFIG.host,
    port: int = _CONFIG.port,
    kv_events_config: str | None = None,
    model_name: str = _CONFIG.model_name,
    dp_size: int = _CONFIG.dp_size,
    cache: CacheName = _CONFIG.cache,
    page_size: int = _CONFIG.page_size,
    max_total_tokens: int = _CONFIG.max_total_tokens,
    eviction_policy: str = _CONFIG.eviction_policy,
    chunked_prefill_size: Annotated[
        int, Parameter(name=["--chunked-prefill-size", "--max-prefill-tokens"])
    ] = _CONFIG.chunked_prefill_size,
    max_running_requests: int = _CONFIG.max_running_requests,
    max_queued_requests: int = _CONFIG.max_queued_requests,
    stream_interval: int = _CONFIG.stream_interval,
    prefill_tokens_per_second: float = _TIMING.prefill_tokens_per_second,
    decode_step_ms: float = _TIMING.decode_step_ms,
    decode_step_per_request_ms: float = _TIMING.decode_step_per_request_ms,
    load_back_tokens_per_second: float = _TIMING.load_back_tokens_per_second,
    storage_tokens_per_second: float = _TIMING.storage_tokens_per_second,
    speed: float = _CONFIG.speed,
    seed: int = _CONFIG.seed,
    sliding_window: int | None = _CONFIG.sliding_window,
    window_tokens: int | None = _CONFIG.window_tokens,
    mamba_slots: int | None = _CONFIG.mamba_slots,
    components: Components = _CONFIG.components,
    announce_groups: bool = _CONFIG.announce_groups,
    keep_sessions: bool = _CONFIG.keep_sessions,
    host_tokens: int | None = _CONFIG.host_tokens,
    write_policy: WritePolicy | None = _CONFIG.write_policy,
    storage: str | None = _CONFIG.storage,
    storage_tokens: int | None = _CONFIG.storage_tokens,
    storage_medium: StorageName | None = _CONFIG.storage_medium,
    async_scheduling: bool = _CONFIG.async_scheduling,
    hash_seed: str | None = _CONFIG.hash_seed,
    adapter: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    json: Json = False,
) -> None:
    """Serve a simulated engine: real scheduling, cache, events and HTTP, only the GPU is a timing model.

    It answers /v1/completions, /v1/chat/completions, /generate, /v1/models, /server_info, /flush_cache,
    /close_session, /holdings, /health and /metrics. Once it listens it prints one line of JSON with its `url` and its
    `kv_events`.
    SIGINT and SIGTERM let running requests end, shortly, and stop it.

    Example: `kvevents engine --port 30000 --kv-events-config '{"endpoint": "tcp://*:5557"}'`

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        kv_events_config: Where cache events go, as JSON with any of the keys publisher, endpoint, replay_endpoint,
            topic, buffer_steps, hwm, max_queue_size, bind, snapshot, format, keys (the path of a publisher's file of
            `kvevents keys`). Rank r publishes on port + r. Port 0 or * finds free ports. Without it there are no
            events.
        model_name: Name in /v1/models.
        dp_size: Data-parallel ranks, each with a cache of its own.
        cache: What kind of engine: block_pool is one like vLLM, with its scheduling, its hashes and its events in its
            own wire format; all others are like SGLang, for models with full attention (radix), sliding windows
            besides (swa), state-space layers besides (mamba), or what --components says (unified; hierarchical, with
            host memory as a tier below).
        page_size: Tokens in a page of KV cache.
        max_total_tokens: KV cache of each rank, in tokens.
        eviction_policy: Which cached prefixes go first: lru, lfu, fifo, mru, filo, priority, slru or tlru.
        chunked_prefill_size: Prompt tokens computed in one step at most.
        max_running_requests: Requests that a rank runs at once at most.
        max_queued_requests: Requests that wait for a rank at most.
        stream_interval: Output tokens between two chunks of a stream; the first comes at once.
        prefill_tokens_per_second: Speed of prefill.
        decode_step_ms: Base time of a decode step.
        decode_step_per_request_ms: What each decoding request adds to a step.
        load_back_tokens_per_second: Speed of copies from host memory (hierarchical).
        storage_tokens_per_second: Speed of reads from --storage (hierarchical).
        speed: Divides all engine times.
        seed: Of the outputs, which are a fixed function of seed, prompt and position.
        sliding_window: Tokens before the next one that sliding layers attend to; by default 4096 (swa, unified).
        window_tokens: KV cache of those layers; by default as much as --max-total-tokens (swa, unified).
        mamba_slots: Room for states, those of running requests included; by default 512 (mamba, unified).
        components: Kinds of layers, full, swa and mamba, separated by commas; by default all (unified) or full
            (hierarchical).
        announce_groups: Announce windows and states too, so that a router knows how much of a prompt can be reused
            (swa, mamba, unified, hierarchical).
        keep_sessions: Evict what requests with a `session_id` have cached after everything else, until POST
            /close_session with that id (all but block_pool).
        host_tokens: Host memory of each rank, in tokens; by default twice --max-total-tokens (hierarchical).
        write_policy: When what is cached is copied to host memory: write_through, at its first insert (the default),
            write_through_selective, at its second, or write_back, when it is evicted (hierarchical).
        storage: What keeps a copy of what is in host memory: memory, of this process, or a folder, in which the next
            engine finds it again; by default nothing (hierarchical).
        storage_tokens: Room in it for each rank, in tokens; by default twice --host-tokens (hierarchical).
        storage_medium: What events call it; by default EXTERNAL for memory and DISK for a folder (hierarchical).
        async_scheduling: Plan each step while the one before it runs, as vLLM does on GPUs (block_pool).
        hash_seed: PYTHONHASHSEED of the engine, which enters its block hashes (block_pool).
        adapter: An adapter that requests may name as their model, or in `lora_path`; once for each. NAME=OTHER: events
            call it OTHER, as an engine does that was told another name.
        json: The line is JSON with or without it.
    """
    del json
    run_engine(
        EngineConfig(
            host=host,
            port=port,
            kv_events=None if kv_events_config is None else KVEventsConfig.from_json(kv_events_config),
            model_name=model_name,
            dp_size=dp_size,
            cache=cache,
            page_size=page_size,
            max_total_tokens=max_total_tokens,
            eviction_policy=eviction_policy,
            chunked_prefill_size=chunked_prefill_size,
            max_running_requests=max_running_requests,
            max_queued_requests=max_queued_requests,
            stream_interval=stream_interval,
            timing=TimingModel(
                prefill_tokens_per_second=prefill_tokens_per_second,
                decode_step_ms=decode_step_ms,
                decode_step_per_request_ms=decode_step_per_request_ms,
                load_back_tokens_per_second=load_back_tokens_per_second,
                storage_tokens_per_second=storage_tokens_per_second,
            ),
            speed=speed,
            seed=seed,
            sliding_window=sliding_window,
            window_tokens=window_tokens,
            mamba_slots=mamba_slots,
            components=components,
            announce_groups=announce_groups,
            keep_sessions=keep_sessions,
            host_tokens=host_tokens,
            write_policy=write_policy,
            storage=storage,
            storage_tokens=storage_tokens,
            storage_medium=storage_medium,
            async_scheduling=async_scheduling,
            hash_seed=hash_seed,
            adapters={name: other or name for name, _, other in (one.partition("=") for one in adapter)},
        ),
        announce=print_json,
    )
