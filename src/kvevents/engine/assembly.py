"""From settings to a rank: which cache, scheduler and announcer belong together."""

import contextlib

from kvevents.caches import BlockPoolCache
from kvevents.engine.announcer import Announcer, Publisher
from kvevents.engine.clock import Clock
from kvevents.engine.config import EngineConfig
from kvevents.engine.memory import KVMemory
from kvevents.engine.rank import Rank
from kvevents.engine.scheduler import Scheduler
from kvevents.engine.storage import open_store
from kvevents.engine.trees import make_tree
from kvevents.engine.vllm.announcer import StepAnnouncer
from kvevents.engine.vllm.scheduler import VllmScheduler
from kvevents.recorder import EventRecorder


def make_rank(config: EngineConfig, clock: Clock, *, publisher: Publisher | None, dp_rank: int) -> Rank:
    """A rank of an engine.

    Args:
        config: the engine's settings.
        clock: the time it lives in.
        publisher: where its events go; None: nowhere.
        dp_rank: the rank that its batches name.

    Raises:
        ConfigError: its storage cannot be used.
    """
    make = _like_vllm if config.cache == "block_pool" else _like_sglang
    return make(config, clock, publisher, dp_rank)


def _like_sglang(config: EngineConfig, clock: Clock, publisher: Publisher | None, dp_rank: int) -> Rank:
    with contextlib.ExitStack() as opened:
        store = open_store(config, dp_rank, opened)
        cache = make_tree(config, records=publisher is not None, store=store)
        resources = opened.pop_all()
    scheduler = Scheduler(
        KVMemory(cache, page_size=config.page_size, sliding_window=config.window_size),
        config.timing,
        chunk_size=config.chunked_prefill_size,
        max_running=config.max_running_requests,
        max_waiting=config.max_queued_requests,
    )
    return Rank(scheduler, cache, Announcer(cache, publisher, dp_rank=dp_rank), clock, resources=resources)


def _like_vllm(config: EngineConfig, clock: Clock, publisher: Publisher | None, dp_rank: int) -> Rank:
    cache = BlockPoolCache(
        num_blocks=config.max_total_tokens // config.page_size + 1,
        page_size=config.page_size,
        hash_seed=config.hash_seed,
        recorder=EventRecorder(config.page_size, coalesce="off", enabled=publisher is not None),
    )
    scheduler = VllmScheduler(
        cache,
        config.timing,
        max_tokens=config.chunked_prefill_size,
        max_running=config.max_running_requests,
        max_waiting=config.max_queued_requests,
        asynchronous=config.async_scheduling,
    )
    return Rank(scheduler, cache, StepAnnouncer(cache, publisher, dp_rank=dp_rank), clock)
