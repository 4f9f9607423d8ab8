"""Every block hash in the vLLM captures, computed again from the tokens: of stores in any tier or group, and removals.

The one thing an engine keeps to itself is the path of an adapter, which enters its blocks' hashes since 0.31.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from goldens import capture, capture_names, published_frames
from kvevents.events import BlockHash, BlockRemoved, BlockStored
from kvevents.hashing import HashScheme, block_digests
from kvevents.wire import decode_batch

NOT_COMPUTABLE = {"lora_sha256_cbor.jsonl": 58}
"""Blocks by capture whose hash nobody outside of the engine can compute: under adapters, whose paths are withheld."""

NONE_HASH = 0x7F1DD9C5BBE
"""`hash(None)` of the process with the scheme `builtin`: an address (Python 3.11), told by any block that has a parent
(`test_hashes_identified.py`)."""


class Engine:
    """A capture: its settings, and the salts of its requests (not on the wire before 0.17)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.settings: dict[str, Any] = capture(name)[0]["config"]
        self.version = tuple(int(part) for part in self.settings["version"]["version"].split(".")[:2])
        requests = (line["body"] for line in capture(name)[1:] if line.get("op") == "request")
        self.salts = {None, *(body.get("cache_salt") for body in requests)}

    def events(self) -> Iterator[object]:
        for _, _, payload in published_frames(self.name):
            yield from decode_batch(payload).events

    def digests(self, event: BlockStored, salt: str | None, parent: bytes | None) -> list[bytes]:
        """The full digests of all blocks that a store's tokens make."""
        scheme: HashScheme = f"vllm-{self.settings['hash_algo']}".replace("_", "-")  # type: ignore[assignment]
        return block_digests(
            [token for token in event.token_ids if isinstance(token, int)],
            event.block_size,
            scheme=scheme,
            cache_salt=salt,
            hash_seed=self.settings["PYTHONHASHSEED"],
            key_form="tagged" if self.version >= (0, 31) else "bare",
            none_hash=NONE_HASH if scheme == "vllm-builtin" else None,
            parent_digest=parent,
        )


def key(block: BlockHash) -> int:
    """A hash's 64 bits; where events carry whole digests these are their end."""
    return block % 2**64 if isinstance(block, int) else int.from_bytes(block[-8:], "big")


class Recomputed:
    """The blocks of a capture whose digest is known, and those under adapters."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.digests: dict[int, bytes] = {}
        self.withheld: set[int] = set()

    def store(self, event: BlockStored) -> None:
        named = [key(block) for block in event.block_hashes]
        if event.lora_name is not None:
            self.withheld.update(named)
            return
        if not event.token_ids:
            # A lower tier names what it takes over from the GPU.
            assert all(block in self.digests for block in named)
            return
        parent = None if event.parent_block_hash is None else self.digests[key(event.parent_block_hash)]
        for salt in self.salts(event):
            digests = {key(digest): digest for digest in self.engine.digests(event, salt, parent)}
            # A masked group names only the blocks that it keeps; their order is that of the tokens.
            kept = [block for block in digests if block in named]
            if kept == named:
                break
        assert kept == named
        assert len(kept) == len(digests) or event.kv_cache_spec_kind == "sliding_window"
        for block in event.block_hashes:
            assert isinstance(block, int) or block == digests[key(block)]
        self.digests |= digests

    def salts(self, event: BlockStored) -> set[str | None]:
        """What may be the salt: said for the GPU's full attention since 0.17."""
        if event.parent_block_hash is not None:
            return {None}
        is_told = event.medium == "GPU" and event.kv_cache_spec_kind != "sliding_window"
        if is_told and self.engine.version >= (0, 17):
            first = event.extra_keys[0] if event.extra_keys else None
            return {None if first is None else first[0]}
        return self.engine.salts

    def remove(self, event: BlockRemoved) -> None:
        assert all(key(block) in self.digests.keys() | self.withheld for block in event.block_hashes)


ENGINES = [name for name in capture_names() if not name.startswith("negative_")]


@pytest.mark.parametrize("name", ENGINES)
def test_every_hash_follows_from_the_tokens(name: str) -> None:
    engine = Engine(name)
    recomputed = Recomputed(engine)
    for event in engine.events():
        if isinstance(event, BlockStored):
            recomputed.store(event)
        elif isinstance(event, BlockRemoved):
            recomputed.remove(event)
    assert recomputed.digests
    assert len(recomputed.withheld) == NOT_COMPUTABLE.get(name, 0)
    assert not recomputed.withheld & recomputed.digests.keys()


@pytest.mark.parametrize("name", sorted(NOT_COMPUTABLE))
def test_without_its_path_an_adapters_block_has_another_hash(name: str) -> None:
    engine = Engine(name)
    adapters = [event for event in engine.events() if isinstance(event, BlockStored) and event.lora_name is not None]
    for event in adapters:
        for salt in engine.salts:
            digests = engine.digests(event, salt, None)
            assert not {key(digest) for digest in digests} & {key(block) for block in event.block_hashes}
    assert adapters
