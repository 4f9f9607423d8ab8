"""`RadixCache` against SGLang 0.5.23's, step by step."""

import pytest

from cache_scripts import CachePlayer
from goldens import Script
from kvevents.events import KVEventBatch
from kvevents.wire import encode_batch
from residency import Residency, expanded

pytestmark = pytest.mark.scripts("radix_")


def test_results_streams_and_residency_are_those_of_the_reference(golden_script: Script) -> None:
    player = CachePlayer(golden_script)
    consumer = Residency()
    for number, step in enumerate(golden_script.steps):
        where = f"step {number}: {step['op']}"
        match step["op"]:
            case "take_events":
                events = player.cache.take_events()
                assert expanded(events) == expanded(step["events"]), where
                consumer.apply(events)
                assert consumer.held() == player.cache.holdings(), where
                player.cache.check_integrity()
            case "tree_state":
                truth = {(block, tier) for node in step["nodes"] for block in node["hashes"] for tier in node["tiers"]}
                assert player.cache.holdings() == truth, where
                assert player.cache.total == player.cache.page_size * sum(len(node["hashes"]) for node in step["nodes"])
            case _:
                assert player.play(step) == step.get("result"), where


def test_batches_are_the_bytes_of_the_reference(golden_script: Script) -> None:
    player = CachePlayer(golden_script)
    nothing = encode_batch(KVEventBatch(ts=0.0, events=[], attn_dp_rank=0))
    for number, step in enumerate(golden_script.steps):
        if step["op"] == "take_events":
            batch = player.cache.take_batch(ts=0.0, dp_rank=0) or nothing
            assert batch.hex() == step["msgpack_hex"], f"step {number}"
        elif step["op"] != "tree_state":
            player.play(step)
