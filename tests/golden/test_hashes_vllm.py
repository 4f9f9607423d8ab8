"""Every block hash in the vLLM captures, computed again from the tokens: of stores in any tier or group, and removals.

The one thing an engine keeps to itself is the path of an adapter, which enters its blocks' hashes since 0.31.
"""

from collections.abc import Iterator
from typing import Any, Self

import pytest

from goldens import capture, capture_names, published_frames
from kvevents.events import BlockHash, BlockRemoved, BlockStored
from kvevents.hashing import HashScheme, block_digests
from kvevents.wire import decode_batch
from vllm_trace import recorded_run

NOT_COMPUTABLE = {"lora_sha256_cbor.jsonl": 58}
"""Blocks by capture whose hash nobody outside of the engine can compute: under adapters, whose paths are withheld."""

NONE_HASH = 0x7F1DD9C5BBE
"""`hash(None)` of the process with the scheme `builtin`: an address (Python 3.11), told by any block that has a parent
(`test_hashes_identified.py`)."""


class Engine:
    """A capture or a long run: its settings, and the salts of its requests (not on the wire before 0.17)."""

    def __init__(self, settings: dict[str, Any], payloads: list[bytes], salts: set[str | None]) -> None:
        self.settings = settings
        self.payloads = payloads
        self.salts = {None, *salts}
        self.version = tuple(int(part) for part in settings["version"]["version"].split(".")[:2])

    @classmethod
    def of_capture(cls, name: str) -> Self:
        requests = (line["body"] for line in capture(name)[1:] if line.get("op") == "request")
        payloads = [payload for _, _, payload in published_frames(name)]
        return cls(capture(name)[0]["config"], payloads, {body.get("cache_salt") for body in requests})

    @classmethod
    def of_run(cls, name: str) -> Self:
        run = recorded_run(name)
        return cls(run.config, run.published, set())

    def events(self) -> Iterator[object]:
        for payload in self.payloads:
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
        self.checked = 0
        """Hashes in stores and removals that turned out right."""

    def store(self, event: BlockStored) -> None:
        named = [key(block) for block in event.block_hashes]
        if event.lora_name is not None:
            self.withheld.update(named)
            return
        if not event.token_ids:
            # A lower tier names what it takes over from the GPU.
            assert all(block in self.digests for block in named)
            self.checked += len(named)
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
        self.checked += len(named)

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
        known = [key(block) in self.digests for block in event.block_hashes]
        assert all(
            is_known or key(block) in self.withheld for is_known, block in zip(known, event.block_hashes, strict=True)
        )
        self.checked += sum(known)


ENGINES = [name for name in capture_names() if not name.startswith("negative_")]


RUNS = {
    "mooncake_edge_A_seq": 26_100,
    "mooncake_edge_A_async_seq": 26_100,
    "mooncake_edge_A_conc8": 26_093,
    "mooncake_conv_A_seq": 120_895,
    "mooncake_conv_A_conc4": 120_849,
}
"""Hashes in the stores and removals of the long runs."""


def recomputed(engine: Engine) -> Recomputed:
    result = Recomputed(engine)
    for event in engine.events():
        if isinstance(event, BlockStored):
            result.store(event)
        elif isinstance(event, BlockRemoved):
            result.remove(event)
    return result


def told(engine: Engine) -> list[int]:
    """Every hash that a store or a removal names."""
    return [key(block) for event in engine.events() for block in getattr(event, "block_hashes", ())]


@pytest.mark.parametrize("name", ENGINES)
def test_every_hash_follows_from_the_tokens(name: str) -> None:
    engine = Engine.of_capture(name)
    result = recomputed(engine)
    assert len(result.withheld) == NOT_COMPUTABLE.get(name, 0)
    assert not result.withheld & result.digests.keys()
    assert result.checked == sum(block not in result.withheld for block in told(engine)) > 0


@pytest.mark.parametrize("name", RUNS)
def test_every_hash_of_a_long_run_follows_from_the_tokens(name: str) -> None:
    engine = Engine.of_run(name)
    assert recomputed(engine).checked == len(told(engine)) == RUNS[name]


@pytest.mark.parametrize("name", sorted(NOT_COMPUTABLE))
def test_without_its_path_an_adapters_block_has_another_hash(name: str) -> None:
    engine = Engine.of_capture(name)
    adapters = [event for event in engine.events() if isinstance(event, BlockStored) and event.lora_name is not None]
    for event in adapters:
        for salt in engine.salts:
            digests = engine.digests(event, salt, None)
            assert not {key(digest) for digest in digests} & {key(block) for block in event.block_hashes}
    assert adapters
