"""The index against recorded engines: what it holds. What a prompt then hits is in `test_oracle_*.py`."""

from typing import Any

import pytest

from goldens import Script, capture, capture_names, published_frames
from kvevents.events import BlockRemoved
from kvevents.index import PrefixIndex
from kvevents.wire import decode_batch
from set_model import TIERS, Held, key


class Replay:
    """An index fed with a script's batches, and the plain model beside it."""

    def __init__(self, script: Script) -> None:
        self.index = PrefixIndex(script.header["page_size"])
        self.model = Held()

    def apply(self, step: dict[str, Any]) -> None:
        data = bytes.fromhex(step["msgpack_hex"])
        report = self.index.apply("w", data)
        misses = sum(self.model.apply(event) for event in decode_batch(data).events)
        assert (report.removal_misses, report.skipped, report.error) == (misses, [], None)

    def held(self) -> dict[str, set[int]]:
        return self.index.holdings("w").get(0, {tier: set() for tier in TIERS})


TREES = ("radix_", "unified_", "pure_swa_")
"""The recorder's scripts announce tails shorter than a page, as no cache does: the index calls that a contradiction."""

FAULTS_OF_THE_REFERENCE = {
    "unified_full_late_lora_p": "an adapter's name registered after the store changes the ids of the removals",
    "unified_swa_hicache_wb_random_p": "a copy to the host is announced for blocks that are on the GPU only",
    "unified_swa_mamba_hicache_wb_random_p": "a copy to the host is announced for blocks that are on the GPU only",
}
"""Scripts whose events do not add up to the tree's residency, by the beginning of their names."""


@pytest.mark.scripts(*TREES)
def test_after_each_batch_the_index_holds_what_the_model_holds(golden_script: Script) -> None:
    replay = Replay(golden_script)
    for step in golden_script.steps:
        if step["op"] == "take_events":
            replay.apply(step)
            assert replay.held() == {tier: replay.model.blocks(number, {0}) for number, tier in enumerate(TIERS)}
    replay.index.check_integrity()


@pytest.mark.scripts(*TREES)
def test_in_the_end_the_index_holds_what_the_tree_holds(golden_script: Script) -> None:
    replay = Replay(golden_script)
    for step in golden_script.steps:
        if step["op"] == "take_events":
            replay.apply(step)
    last = golden_script.steps[-1]
    if last["op"] != "tree_state":
        pytest.skip("the script does not end with the tree's state")
    tree: dict[str, set[int]] = {tier: set() for tier in TIERS}
    for node in last["nodes"]:
        for tier in node["tiers"]:
            tree[tier].update(node["hashes"])
    at_fault = golden_script.name.startswith(tuple(FAULTS_OF_THE_REFERENCE))
    assert (replay.held() == tree) != at_fault


ENGINES = [name for name in capture_names() if not name.startswith("negative_")]


@pytest.mark.parametrize("name", ENGINES)
def test_every_event_of_an_engine_finds_its_place(name: str) -> None:
    index = PrefixIndex(capture(name)[0]["config"]["block_size"])
    for _, seq, payload in published_frames(name):
        index.apply("w", payload, seq=int.from_bytes(seq))
    index.check_integrity()
    for source in index.stats().sources:
        assert (source.pending, source.parked, source.dropped, source.refused, source.skipped) == (0, 0, 0, 0, {})


def test_bytes_and_integers_of_one_hash_meet_when_a_stream_is_rewritten() -> None:
    """The engine's bytes for its stores, integers for the removals: as offload connectors before 0.24 did."""
    name = "sha256_cbor_bytes.jsonl"
    index = PrefixIndex(capture(name)[0]["config"]["block_size"])
    for _, _, payload in published_frames(name):
        batch = decode_batch(payload)
        for event in batch.events:
            if isinstance(event, BlockRemoved):
                event.block_hashes = [key(block) for block in event.block_hashes]
        assert index.apply("w", batch).removal_misses == 0
