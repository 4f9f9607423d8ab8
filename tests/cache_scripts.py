"""Recorded SGLang scripts, played on caches of ours."""

import json
from typing import Any

from goldens import Script
from kvevents.caches import (
    EvictionPolicy,
    HiRadixCache,
    Layers,
    Mamba,
    PagedSlotAllocator,
    PrefixCache,
    RadixCache,
    SegmentedLRU,
    SlidingWindow,
    TailLRU,
    UnifiedRadixCache,
)
from kvevents.caches.node import Node
from kvevents.recorder import EventRecorder

POLICIES_WITH_SETTINGS = {"slru": SegmentedLRU, "tlru": TailLRU}


class CachePlayer:
    """A cache as a script's header describes it, and the steps of the script as calls to it."""

    def __init__(self, script: Script) -> None:
        header = script.header
        self.names: dict[str, str] = {}
        recorder = EventRecorder(header["page_size"], event_format=header["event_format"], lora_names=self.names)
        self.cache = _cache(header, recorder)
        self.has_window = header["cache"] in {"unified_swa", "unified_swa_mamba"}
        self.has_state = header["mamba_slots"] is not None
        self.has_tiers = header["host_tokens"] is not None
        self._matched: dict[tuple[int, ...], Node] = {}

    @property
    def tiered(self) -> HiRadixCache:
        """The cache, of a script about tiers."""
        assert isinstance(self.cache, HiRadixCache)
        return self.cache

    def play(self, step: dict[str, Any]) -> dict[str, Any] | None:
        """Do one step; what the cache answers, in the words of the script."""
        call = getattr(self, f"_{step['op']}")
        result: dict[str, Any] | None = call(step)
        return result

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes of the tree and what they hold, in the words and the order of the script."""
        nodes = []
        for node in self.cache._tree:
            held: dict[str, Any] = {
                "hashes": self.cache._recorder.announced_ids(node.chain).tolist(),
                "tiers": ["GPU"],
                "extra_key": node.chain.extra_key,
                "cache_salt": node.chain.cache_salt,
            }
            for component in self.cache._beside:
                held[{"sliding_window": "swa_device", "mamba": "mamba_device"}[component.group]] = component.has(node)
            if self.has_tiers:
                held["tiers"] = [
                    tier
                    for tier, copies in (("GPU", self.cache._full), ("CPU_PINNED", self.tiered._tiers.host.full))
                    if copies.has(node)
                ]
                for copies in self.tiered._tiers.host.copies[1:]:
                    held[{"sliding_window": "swa_host", "mamba": "mamba_host"}[copies.component.group]] = copies.has(
                        node
                    )
            nodes.append(held)
        return sorted(nodes, key=json.dumps)

    def _insert(self, step: dict[str, Any]) -> dict[str, Any]:
        result = self.cache.insert(
            step["tokens"],
            extra_key=step.get("extra_key"),
            cache_salt=step.get("cache_salt"),
            session_id=step.get("session_id"),
            priority=step.get("priority", 0),
            inserted_length=step.get("inserted_len", 0),
            window_start=step.get("swa_evicted_seqlen", 0),
        )
        return {"prefix_len": result.prefix_length} | ({"mamba_exist": not result.state_kept} if self.has_state else {})

    def _match(self, step: dict[str, Any]) -> dict[str, Any]:
        match = self.cache.match_prefix(
            step["tokens"], extra_key=step.get("extra_key"), cache_salt=step.get("cache_salt")
        )
        assert len(match.slots) == match.length
        self._matched[tuple(step["tokens"])] = match.node
        return {"device_prefix_len": match.length, "host_hit_length": match.host_length}

    def _evict(self, step: dict[str, Any]) -> dict[str, Any]:
        result = self.cache.evict(
            step["num_tokens"], window_tokens=step.get("swa_num_tokens", 0), states=step.get("mamba_num", 0)
        )
        return (
            {"num_tokens_evicted": result.tokens}
            | ({"swa_num_tokens_evicted": result.window_tokens} if self.has_window else {})
            | ({"mamba_num_evicted": result.states} if self.has_state else {})
        )

    def _hicache_poll(self, step: dict[str, Any]) -> None:
        self.tiered.poll()

    def _load_back(self, step: dict[str, Any]) -> dict[str, Any]:
        found = self._match(step)
        return {**found, "loaded": self.tiered.load_back(self._matched[tuple(step["tokens"])])}

    def _evict_host(self, step: dict[str, Any]) -> dict[str, Any]:
        names = {"full": "full", "swa": "sliding_window", "mamba": "mamba"}
        return {"evicted": self.tiered.evict_host(step["num_tokens"], names[step["component"]])}

    def _insert_host(self, step: dict[str, Any]) -> dict[str, Any]:
        result = self.tiered.insert_host(
            step["tokens"], extra_key=step.get("extra_key"), cache_salt=step.get("cache_salt")
        )
        return {"prefix_len": result.prefix_length, "dropped": False}

    def _lock(self, step: dict[str, Any]) -> None:
        """The scripts lock what a match before found."""
        self.cache.lock(self._matched[tuple(step["tokens"])])

    def _unlock(self, step: dict[str, Any]) -> None:
        self.cache.unlock(self._matched[tuple(step["tokens"])])

    def _reset(self, step: dict[str, Any]) -> None:
        self.cache.reset()

    def _register_lora(self, step: dict[str, Any]) -> None:
        self.names[step["extra_key"]] = self.names[step["lora_id"]] = step["lora_name"]

    def _register_lora_id(self, step: dict[str, Any]) -> None:
        self.names[step["lora_id"]] = step["lora_name"]


def _cache(header: dict[str, Any], recorder: EventRecorder) -> PrefixCache:
    settings: dict[str, Any] = {
        "page_size": header["page_size"],
        "capacity": header["kv_tokens"],
        "eviction_policy": _policy(header),
        "bigram": header["eagle"],
        "recorder": recorder,
    }
    if header["cache"] in {"radix", "pure_swa"}:
        return RadixCache(**settings)
    components: list[Layers] = []
    if header["sliding_window"] is not None:
        components.append(SlidingWindow(header["sliding_window"]))
    if header["mamba_slots"] is not None:
        components.append(Mamba(header["mamba_slots"]))
    if header["host_tokens"] is None:
        return UnifiedRadixCache(components=components, **settings)
    # SGLang adds a page to each pool in host memory.
    page = header["page_size"]
    states = (header["mamba_slots"] or 0) * header["host_tokens"] // header["kv_tokens"] + 1
    return HiRadixCache(
        host_tokens=(header["host_tokens"] // page + 1) * page,
        write_policy=header["hicache_write_policy"],
        host_allocators={"mamba": PagedSlotAllocator(states)} if header["mamba_slots"] else None,
        components=components,
        **settings,
    )


def _policy(header: dict[str, Any]) -> str | EvictionPolicy:
    name: str = header["eviction_policy"]
    settings = header.get("eviction_policy_config")
    return POLICIES_WITH_SETTINGS[name](**settings) if settings else name
