"""Our way of recording in SGLang's Python tree: one event a node, not one a page, and ids made in Rust."""

import itertools
from typing import Any

from kvevents._core.hashing import announced_ids
from kvevents.events import BlockHash


def make_recorder(events: Any) -> type:
    """A recorder below SGLang's own, which makes the same events.

    What pages are hashed to, which parent a node has, how an adapter is named and what merges with what stays SGLang's;
    what is done once a page there (an id, an event, merging it) is done once a node here.

    Args:
        events: SGLang's module `sglang.srt.mem_cache.events`.
    """
    stored, removed, tiers = events.BlockStored, events.BlockRemoved, events.StorageMedium

    class KVEventsRecorder(events.KVCacheEventRecorder):  # type: ignore[misc] # the base is SGLang's, at run time
        """SGLang's recorder, faster."""

        is_kvevents = True

        def record_store(self, node: Any, medium: Any = None, *, session_id: str | None = None) -> None:
            """A node's pages are held now, in the tier `medium` (GPU if None)."""
            key = node.key
            units = len(key)
            if not self.enabled or not units:
                return
            size = self.page_size
            hashes = self._node_event_hash_values(node)
            seed = self._namespace_seed(node)
            parent = self._parent_block_hash(node)
            if parent is not None:
                parent = events.namespaced_block_hash(parent, namespace_seed=seed)
            name = (self.lora_names.resolve if self.dynamo_format else self.lora_names.get)(key.extra_key)
            ids = self._announced(hashes[: -(-units // size)], key, seed)
            tokens = _units(key, units)
            whole = units // size
            cut = whole * size
            rest = {"lora_id": None, "medium": medium or tiers.GPU, "cache_salt": key.cache_salt}
            rest |= {"session_id": session_id, "lora_name": name}
            if whole:
                page_tokens = tokens if cut == units else tokens[:cut]
                self.enqueue(stored(ids[:whole], parent, page_tokens, size, **rest))
                parent = ids[whole - 1]
            if cut < units:  # a last page that is not whole is an event of its own
                self.enqueue(stored(ids[whole:], parent, tokens[cut:], units - cut, **rest))

        def record_remove(self, node: Any, medium: Any = None) -> None:
            """A node's pages are no longer held in the tier `medium` (GPU if None)."""
            if not self.enabled or not len(node.key):
                return
            hashes = self._node_event_hash_values(node)
            pages = -(-len(node.key) // self.page_size)
            ids = self._announced(hashes[:pages], node.key, self._namespace_seed(node))
            self.enqueue(removed(ids, medium or tiers.GPU))

        def _announced(self, hashes: list[str], key: Any, seed: bytes | None) -> list[BlockHash]:
            if seed is None:
                return announced_ids(hashes)
            # A seed is the hash of just these two: the default format names the adapter alone, Dynamo's the salt too.
            return announced_ids(
                hashes,
                extra_key=key.extra_key,
                cache_salt=key.cache_salt,
                event_format="dynamo" if self.dynamo_format else "default",
                named=not self.dynamo_format,
            )

    KVEventsRecorder.__name__ = KVEventsRecorder.__qualname__ = events.KVCacheEventRecorder.__name__
    return KVEventsRecorder


def _units(key: Any, units: int) -> list[Any]:
    """The ids, or pairs of neighbours, as SGLang's events carry them."""
    raw = key.token_ids
    ids = raw.tolist() if hasattr(raw, "tolist") else list(raw)
    return list(itertools.pairwise(ids[: units + 1])) if key.is_bigram else ids[:units]
