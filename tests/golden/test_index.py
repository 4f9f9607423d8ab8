"""The index against recorded engines: what it holds, what a prompt hits, what the engine then reports as cached."""

from collections.abc import Iterator
from typing import Any

import pytest

from goldens import Script, capture, capture_names
from kvevents.events import BlockRemoved
from kvevents.index import PrefixIndex
from kvevents.wire import decode_batch
from set_model import TIERS, Held, key

CHANGES = {"insert", "evict", "evict_host", "reset", "hicache_poll", "load_back", "insert_host"}
"""Operations after which the next events tell something new."""


class Replay:
    """An index fed with a script's batches, and the plain model beside it."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.page_size = script.header["page_size"]
        self.index = PrefixIndex(self.page_size)
        self.model = Held()

    def apply(self, step: dict[str, Any]) -> None:
        data = bytes.fromhex(step["msgpack_hex"])
        report = self.index.apply("w", data)
        misses = sum(self.model.apply(event) for event in decode_batch(data).events)
        assert (report.removal_misses, report.skipped, report.error) == (misses, [], None)

    def held(self) -> dict[str, set[int]]:
        return self.index.holdings("w").get(0, {tier: set() for tier in TIERS})

    def run(self) -> Iterator[dict[str, Any]]:
        """The `match` steps, each when the index knows all that the cache did before it and nothing after."""
        asked: list[dict[str, Any]] = []
        changed = False
        for step in self.script.steps:
            if step["op"] == "take_events":
                self.apply(step)
                yield from asked
                asked, changed = [], False
            elif step["op"] in CHANGES:
                asked, changed = [], True
            elif step["op"] == "match":
                if changed:
                    asked.append(step)
                else:
                    yield step


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
    for _ in replay.run():
        pass
    last = golden_script.steps[-1]
    if last["op"] != "tree_state":
        pytest.skip("the script does not end with the tree's state")
    tree: dict[str, set[int]] = {tier: set() for tier in TIERS}
    for node in last["nodes"]:
        for tier in node["tiers"]:
            tree[tier].update(node["hashes"])
    at_fault = golden_script.name.startswith(tuple(FAULTS_OF_THE_REFERENCE))
    assert (replay.held() == tree) != at_fault


def adapters(script: Script) -> dict[str, str]:
    """Adapter names by extra key."""
    return {step["extra_key"]: step["lora_name"] for step in script.steps if step["op"] == "register_lora"}


def is_told(script: Script) -> bool:
    """Whether the events tell every namespace: an extra key is on the wire only if it had an adapter's name by then."""
    named: set[str | None] = {None}
    for step in script.steps:
        if step["op"] == "register_lora":
            named.add(step["extra_key"])
        if step.get("extra_key") not in named:
            return False
    return True


@pytest.mark.scripts("radix_", "unified_full_", "pure_swa_")
def test_a_prompt_hits_what_the_cache_found(golden_script: Script) -> None:
    if not is_told(golden_script):
        pytest.skip("the script has namespaces that are not on the wire")
    replay = Replay(golden_script)
    names = adapters(golden_script)
    for step in replay.run():
        name = names.get(step.get("extra_key", ""))
        matches = replay.index.match(step["tokens"], lora_name=name, cache_salt=step.get("cache_salt"))
        gpu, total = (matches[0].tiers["GPU"], matches[0].total) if matches else (0, 0)
        found = step["result"]
        assert gpu * replay.page_size == found["device_prefix_len"]
        assert (total - gpu) * replay.page_size == found["host_hit_length"]


@pytest.mark.scripts("unified_swa_", "unified_mamba_")
def test_where_windows_and_states_are_not_announced_a_prompt_hits_no_less_than_the_cache_found(
    golden_script: Script,
) -> None:
    replay = Replay(golden_script)
    for step in replay.run() if is_told(golden_script) else ():
        matches = replay.index.match(step["tokens"])
        total = matches[0].total if matches else 0
        assert total * replay.page_size >= step["result"]["device_prefix_len"] + step["result"]["host_hit_length"]


class Engine:
    """A vLLM capture: the index is fed with what it published, and asked at each request."""

    def __init__(self, name: str) -> None:
        self.lines = capture(name)
        self.config = self.lines[0]["config"]
        self.block_size = self.config["block_size"]
        self.index = PrefixIndex(self.block_size)
        self.index.add_worker("w", block_size=self.block_size, residency="set" if "report" in name else "counted")
        self.responses = {line["id"]: line for line in self.lines if line.get("op") == "response"}

    def predictions(self) -> Iterator[tuple[set[int], int, bool]]:
        """Cached tokens of each request as the index says, by rank, and as the engine does; whether after a reset."""
        reset = False
        for line in self.lines[1:]:
            if line.get("dir") == "pub":
                self.index.apply("w", bytes.fromhex(line["frames"][2]), seq=int(line["frames"][1], 16))
            elif line.get("op") == "reset_prefix_cache":
                reset = True
            elif line.get("op") == "request" and not line.get("tag"):
                asked = self.ask(line)
                if asked is not None:
                    yield (*asked, reset)
                    reset = False

    def ask(self, request: dict[str, Any]) -> tuple[set[int], int] | None:
        response = self.responses.get(request["id"], {})
        reported = ((response.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
        tokens = response.get("prompt_token_ids")
        if not isinstance(tokens, list):
            tokens = request["body"].get("prompt")
        if reported is None or not tokens or not isinstance(tokens, list):
            return None
        model = request["body"]["model"]
        name = None if model == "tiny" else model
        matches = self.index.match(tokens, lora_name=name, cache_salt=request["body"].get("cache_salt"))
        limit = (len(tokens) - 1) // self.block_size
        found = {min(match.usable, limit) * self.block_size for match in matches}
        # With two ranks, the number is that of one of them; a rank that holds nothing has no match.
        return (found if len(matches) == self.config["data_parallel"] else found | {0}), reported


ENGINES = [name for name in capture_names() if not name.startswith("negative_")]
SILENT = ("v0.1", "v0.2")
"""Engines that do not report cached tokens."""


@pytest.mark.parametrize("name", ENGINES)
def test_the_index_predicts_what_the_engine_reports_as_cached(name: str) -> None:
    engine = Engine(name)
    requests = list(engine.predictions())
    for predicted, reported, after_reset in requests:
        # The engine announces a reset with its next step only, so the first request after one is not known.
        assert after_reset or reported in predicted
    assert bool(requests) != name.startswith(SILENT)
    assert sum(reported > 0 for _, reported, _ in requests) > 0 or name.startswith(SILENT)
    engine.index.check_integrity()


@pytest.mark.parametrize("name", ENGINES)
def test_every_event_of_an_engine_finds_its_place(name: str) -> None:
    engine = Engine(name)
    for _ in engine.predictions():
        pass
    for source in engine.index.stats().sources:
        assert (source.pending, source.parked, source.dropped, source.refused, source.skipped) == (0, 0, 0, 0, {})


def test_bytes_and_integers_of_one_hash_meet_when_a_stream_is_rewritten() -> None:
    """The engine's bytes for its stores, integers for the removals: as offload connectors before 0.24 did."""
    engine = Engine("sha256_cbor_bytes.jsonl")
    batches = [bytes.fromhex(line["frames"][2]) for line in engine.lines if line.get("dir") == "pub"]
    for data in batches:
        batch = decode_batch(data)
        for event in batch.events:
            if isinstance(event, BlockRemoved):
                event.block_hashes = [key(block) for block in event.block_hashes]
        assert engine.index.apply("w", batch).removal_misses == 0
