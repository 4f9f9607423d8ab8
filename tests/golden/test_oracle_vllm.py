"""The oracle that counts: an index that knows only what a recorded engine announced says what the engine found cached.

`usage.cached_tokens` of a response is the engine's own account of its cache. vLLM looks a request up when it admits it
and then announces what it computes, so the index is asked just before the request's own first store; one request at a
time, asking when the request is sent is the same, except after a reset, which the engine announces late.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from goldens import capture, capture_names
from kvevents.events import AllBlocksCleared, BlockRemoved, KVEventBatch
from kvevents.wire import decode_batch
from lookups import Lookup, Oracle, Prompt
from vllm_trace import Answered, Asked, Published, recorded_run


def accounts(name: str) -> int:
    """How many requests of a capture were answered with what the engine found cached."""
    responses = (line for line in capture(name) if line.get("op") == "response")
    return sum(response["usage"].get("prompt_tokens_details") is not None for response in responses)


ENGINES = [name for name in capture_names() if accounts(name)]
"""Engines before 0.32 were not asked for their account."""

SEQUENTIAL = ["mooncake_edge_A_seq", "mooncake_edge_A_async_seq", "mooncake_conv_A_seq"]
CONCURRENT = ["mooncake_edge_A_conc8", "mooncake_conv_A_conc4"]

FORGOTTEN = {("offload_cpu_legacy_sha256_cbor.jsonl", 10)}
"""Requests after a reset that left the lower tier intact. A full reset looks the same, so the index forgets both tiers:
it never promises what may be gone."""

UNDETERMINED = {"sha256.jsonl": 3, "sha256_cbor.jsonl": 3, "v0.32.0_stub_sha256_bs16.jsonl": 3, "xxhash_cbor.jsonl": 3}
"""Requests by capture that found their whole prompt while another request computed it: no event tells when."""

Change = Callable[[KVEventBatch], KVEventBatch]


def as_it_was(batch: KVEventBatch) -> KVEventBatch:
    return batch


def prompts(name: str) -> Iterator[Prompt | int | KVEventBatch]:
    """What happened in a capture: requests sent, requests answered (by id), batches that came."""
    lines = capture(name)
    responses = {line["id"]: line for line in lines if line.get("op") == "response"}
    for line in lines[1:]:
        if line.get("dir") == "pub":
            yield decode_batch(bytes.fromhex(line["frames"][2]))
        elif line.get("op") == "request":
            yield prompt(line, responses[line["id"]])
        elif line.get("op") == "response":
            yield line["id"]


def prompt(request: dict[str, Any], response: dict[str, Any]) -> Prompt:
    body = request["body"]
    # Completions of token ids do not give them back.
    tokens = response["prompt_token_ids"]
    return Prompt(
        request["id"],
        tokens if isinstance(tokens, list) else body["prompt"],
        None if body["model"] == "tiny" else body["model"],
        body.get("cache_salt"),
        request["t"],
        response["t"],
        response["usage"]["prompt_tokens_details"]["cached_tokens"],
    )


def run(name: str) -> Iterator[Prompt | int | KVEventBatch]:
    """The same of a long run."""
    recorded = recorded_run(name)
    answers = recorded.answers
    for line in recorded.lines:
        match line:
            case Published():
                yield decode_batch(line.payload)
            case Asked():
                answer = answers[line.id]
                yield Prompt(line.id, line.prompt, None, None, line.at, answer.at, answer.cached_tokens)
            case Answered():
                yield line.id


def follow(oracle: Oracle, steps: Iterator[Prompt | int | KVEventBatch], change: Change = as_it_was) -> list[Lookup]:
    for step in steps:
        match step:
            case Prompt():
                oracle.ask(step)
            case KVEventBatch():
                oracle.apply(change(step))
            case _:
                oracle.answer(step)
    oracle.index.check_integrity()
    return list(oracle.lookups.values())


def follow_capture(name: str, change: Change = as_it_was) -> list[Lookup]:
    config = capture(name)[0]["config"]
    # In full report mode stores are repeated that were never new.
    residency = "set" if name.startswith("report_full") else "counted"
    return follow(Oracle(config["block_size"], config["data_parallel"], residency), prompts(name), change)


def follow_run(name: str, change: Change = as_it_was) -> list[Lookup]:
    return follow(Oracle(recorded_run(name).config["block_size"]), run(name), change)


def test_every_account_there_is_is_compared() -> None:
    left_out = [name for name in capture_names() if name not in ENGINES]
    assert all(name.startswith(("negative_", "v0.1", "v0.2")) for name in left_out)
    assert sum(map(accounts, ENGINES)) == 254
    assert all(accounts(name) == sum(line.get("op") == "request" for line in capture(name)) for name in ENGINES)


@pytest.mark.parametrize("name", ENGINES)
def test_the_index_predicts_what_an_engine_reports(name: str) -> None:
    lookups = follow_capture(name)
    assert len(lookups) == accounts(name)
    for lookup in lookups:
        if (name, lookup.prompt.id) in FORGOTTEN:
            assert lookup.predicted == {0} != {lookup.prompt.reported}
        else:
            assert lookup.prompt.reported in lookup.predicted, f"request {lookup.prompt.id}"
    assert sum(len(lookup.predicted) > 1 for lookup in lookups) == UNDETERMINED.get(name, 0)
    assert any(lookup.prompt.reported for lookup in lookups)


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_of_a_long_run_under_eviction_the_index_predicts_every_request(name: str) -> None:
    lookups = follow_run(name)
    for lookup in lookups:
        assert lookup.is_alone
        assert lookup.at_request == lookup.predicted == {lookup.prompt.reported}, f"request {lookup.prompt.id}"
    assert len(lookups) == len(recorded_run(name).prompts)


@pytest.mark.parametrize("name", CONCURRENT)
def test_of_a_concurrent_run_the_index_predicts_every_request_when_it_is_admitted(name: str) -> None:
    lookups = follow_run(name)
    for lookup in lookups:
        assert lookup.prompt.reported in lookup.predicted, f"request {lookup.prompt.id}"
    assert len(lookups) == len(recorded_run(name).prompts)
    found_in_time = [lookup for lookup in lookups if lookup.at_request == {lookup.prompt.reported}]
    admitted = [lookup for lookup in lookups if lookup.at_own_store is not None]
    # What a request has that was not announced when it was sent is what the moment of admission is for.
    assert len(admitted) > 0.8 * len(lookups)
    assert len(found_in_time) < len(lookups)


def wrong(lookups: list[Lookup]) -> int:
    return sum(lookup.prompt.reported not in lookup.predicted for lookup in lookups)


def without_removals(batch: KVEventBatch) -> KVEventBatch:
    return KVEventBatch(
        batch.ts, [event for event in batch.events if not isinstance(event, BlockRemoved)], batch.attn_dp_rank
    )


def without_clears(batch: KVEventBatch) -> KVEventBatch:
    return KVEventBatch(
        batch.ts, [event for event in batch.events if not isinstance(event, AllBlocksCleared)], batch.attn_dp_rank
    )


@pytest.mark.parametrize("name", SEQUENTIAL + CONCURRENT)
def test_an_index_that_forgets_removals_is_found_out(name: str) -> None:
    assert wrong(follow_run(name, without_removals)) > 0


@pytest.mark.parametrize("name", ["sha256.jsonl", "swa_hybrid_sha256_cbor.jsonl", "dp2_sha256_cbor.jsonl"])
def test_an_index_that_forgets_clears_is_found_out(name: str) -> None:
    assert wrong(follow_capture(name, without_clears)) > 0


def test_with_two_ranks_the_numbers_are_those_of_one_each() -> None:
    """Every request of the capture is announced by the rank that ran it; the other rank would say otherwise."""
    lookups = follow_capture("dp2_sha256_cbor.jsonl")
    assert all(lookup.at_own_store == lookup.prompt.reported for lookup in lookups)
    assert any(len(lookup.at_request) == 2 for lookup in lookups)
