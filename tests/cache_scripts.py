"""Recorded SGLang scripts, played on caches of ours."""

from typing import Any

from goldens import Script
from kvevents.caches import EvictionPolicy, RadixCache, SegmentedLRU
from kvevents.caches.node import Node
from kvevents.recorder import EventRecorder

POLICIES_WITH_SETTINGS = {"slru": SegmentedLRU}


class CachePlayer:
    """A cache as a script's header describes it, and the steps of the script as calls to it."""

    def __init__(self, script: Script) -> None:
        header = script.header
        self.names: dict[str, str] = {}
        recorder = EventRecorder(header["page_size"], event_format=header["event_format"], lora_names=self.names)
        self.cache = RadixCache(
            page_size=header["page_size"],
            capacity=header["kv_tokens"],
            eviction_policy=_policy(header),
            bigram=header["eagle"],
            recorder=recorder,
        )
        self._matched: Node | None = None

    def play(self, step: dict[str, Any]) -> dict[str, Any] | None:
        """Do one step; what the cache answers, in the words of the script."""
        call = getattr(self, f"_{step['op']}")
        result: dict[str, Any] | None = call(step)
        return result

    def _insert(self, step: dict[str, Any]) -> dict[str, Any]:
        result = self.cache.insert(
            step["tokens"],
            extra_key=step.get("extra_key"),
            cache_salt=step.get("cache_salt"),
            session_id=step.get("session_id"),
            priority=step.get("priority", 0),
            inserted_length=step.get("inserted_len", 0),
        )
        return {"prefix_len": result.prefix_length}

    def _match(self, step: dict[str, Any]) -> dict[str, Any]:
        match = self.cache.match_prefix(
            step["tokens"], extra_key=step.get("extra_key"), cache_salt=step.get("cache_salt")
        )
        assert len(match.slots) == match.length
        self._matched = match.node
        return {"device_prefix_len": match.length, "host_hit_length": match.host_length}

    def _evict(self, step: dict[str, Any]) -> dict[str, Any]:
        return {"num_tokens_evicted": self.cache.evict(step["num_tokens"]).tokens}

    def _lock(self, step: dict[str, Any]) -> None:
        """The scripts lock what the match before found."""
        assert self._matched is not None, step
        self.cache.lock(self._matched)

    def _unlock(self, step: dict[str, Any]) -> None:
        assert self._matched is not None, step
        self.cache.unlock(self._matched)

    def _reset(self, step: dict[str, Any]) -> None:
        self.cache.reset()

    def _register_lora(self, step: dict[str, Any]) -> None:
        self.names[step["extra_key"]] = self.names[step["lora_id"]] = step["lora_name"]

    def _register_lora_id(self, step: dict[str, Any]) -> None:
        self.names[step["lora_id"]] = step["lora_name"]


def _policy(header: dict[str, Any]) -> str | EvictionPolicy:
    name: str = header["eviction_policy"]
    settings = header.get("eviction_policy_config")
    return POLICIES_WITH_SETTINGS[name](**settings) if settings else name
