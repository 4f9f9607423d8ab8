"""From settings to the prefix cache of an engine like SGLang."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Unpack

from kvevents.caches import (
    HiRadixCache,
    Mamba,
    MambaRadixCache,
    PrefixCache,
    RadixCache,
    SlidingWindow,
    SWARadixCache,
    TierStore,
    UnifiedRadixCache,
)
from kvevents.caches.settings import CacheSettings
from kvevents.engine.config import EngineConfig
from kvevents.recorder import EventRecorder


def make_tree(config: EngineConfig, *, records: bool, store: TierStore | None = None) -> PrefixCache:
    """The cache of a rank.

    Args:
        config: the engine's settings; its `cache` is one of `TREES`.
        records: whether events are wanted.
        store: what is below host memory, if the cache is `hierarchical`; None: nothing.

    Raises:
        ConfigError: the store has blocks of a cache with other pages.
    """
    event_format = config.kv_events.format if config.kv_events else "default"
    below = {} if store is None else {"storage": store}
    return TREES[config.cache](
        config,
        page_size=config.page_size,
        capacity=config.max_total_tokens,
        eviction_policy=config.eviction_policy,
        recorder=EventRecorder(
            config.page_size,
            event_format=event_format,
            enabled=records,
            lora_names={name: name for name in config.adapters.values()},
        ),
        announce_groups=config.announce_groups,
        keep_sessions=config.keep_sessions,
        **below,
    )


def _radix(_config: EngineConfig, **settings: Unpack[CacheSettings]) -> RadixCache:
    return RadixCache(**settings)


def _swa(config: EngineConfig, **settings: Unpack[CacheSettings]) -> SWARadixCache:
    return SWARadixCache(sliding_window=config.window_size, window_capacity=config.window_tokens, **settings)


def _mamba(config: EngineConfig, **settings: Unpack[CacheSettings]) -> MambaRadixCache:
    return MambaRadixCache(mamba_slots=config.states, **settings)


def _unified(config: EngineConfig, **settings: Unpack[CacheSettings]) -> UnifiedRadixCache:
    return UnifiedRadixCache(components=_layers(config), **settings)


def _hierarchical(
    config: EngineConfig, *, storage: TierStore | None = None, **settings: Unpack[CacheSettings]
) -> HiRadixCache:
    return HiRadixCache(
        host_tokens=config.host_capacity,
        write_policy=config.write_policy or "write_through",
        storage=storage,
        components=_layers(config),
        **settings,
    )


def _layers(config: EngineConfig) -> list[SlidingWindow | Mamba]:
    layers: list[SlidingWindow | Mamba] = []
    if config.window_size:
        layers.append(SlidingWindow(config.window_size, config.window_tokens))
    if config.states:
        layers.append(Mamba(config.states))
    return layers


TREES: Mapping[str, Callable[..., PrefixCache]] = MappingProxyType(
    {"radix": _radix, "swa": _swa, "mamba": _mamba, "unified": _unified, "hierarchical": _hierarchical}
)
"""Builders by the names of `EngineConfig.cache`; each takes the settings and what all caches have in common."""
