"""Engines with tiers below the GPU as processes: an index of the events agrees in each tier, over a restart too."""

from pathlib import Path

import httpx
import pytest

from engine_process import EngineProcess, run_to_end, running_engine
from kvevents.index import PrefixIndex
from kvevents.transport import Subscriber, discover
from zmq_peers import until

pytestmark = pytest.mark.integration
PAGE = 16
EVENTS = '{"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"}'
OPTIONS = (
    *("--cache", "hierarchical", "--page-size", str(PAGE), "--max-total-tokens", str(20 * PAGE)),
    *("--host-tokens", str(30 * PAGE), "--dp-size", "2", "--speed", "200", "--kv-events-config", EVENTS),
)


def complete(engine: EngineProcess, prompt: list[int], rank: int = 0) -> int:
    """Send a prompt to a rank; how much of it was cached."""
    body = {"model": "kvevents-sim", "prompt": prompt, "max_tokens": 4}
    answer = httpx.post(
        f"{engine.url}/v1/completions", json=body, headers={"x-data-parallel-rank": str(rank)}, timeout=30
    )
    cached: int = answer.raise_for_status().json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def prompt(number: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + 12 * PAGE))


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
@pytest.mark.parametrize("medium", ["EXTERNAL", "DISK"])
def test_an_index_of_its_events_agrees_in_every_tier(tmp_path: Path, policy: str, medium: str) -> None:
    storage = "memory" if medium == "EXTERNAL" else str(tmp_path / "kv")
    options = (*OPTIONS, "--write-policy", policy, "--storage", storage)
    index = PrefixIndex(PAGE)

    def agrees() -> bool:
        held = engine.holdings()
        known = index.holdings("w")
        return all({tier: ids for tier, ids in known.get(rank, {}).items() if ids} == held[rank] for rank in held)

    with running_engine(*options) as engine, Subscriber(discover(engine.url, worker_id="w"), index):
        for number in range(6):
            complete(engine, prompt(number), rank=number % 2)
            until(agrees)
        tiers = engine.holdings()[0]
        assert set(tiers) == {"GPU", "CPU_PINNED", medium}
        lower = tiers["CPU_PINNED"] | tiers[medium]
        assert len(lower - tiers["GPU"]) >= 12
        assert complete(engine, prompt(0)) == 11 * PAGE
        until(agrees)
        (match,) = [match for match in index.match(prompt(2)) if match.dp_rank == 0]
        assert match.total == 12
        assert match.tiers[medium] > 0
        assert engine.stop()[0] == 0
    if medium == "EXTERNAL":
        return
    kept = tiers[medium]
    with running_engine(*options) as engine, Subscriber(discover(engine.url, worker_id="w"), index):
        until(agrees)
        again = engine.holdings()[0]
        assert set(again) == {medium}
        assert again[medium] >= kept
        assert complete(engine, prompt(0)) == 11 * PAGE
        until(agrees)
        assert httpx.post(f"{engine.url}/flush_cache", timeout=30).is_success
        until(agrees)
        assert engine.holdings() == {0: {}, 1: {}}
    assert not list((tmp_path / "kv").rglob("*.block"))


def test_a_folder_is_for_one_engine_and_failures_are_counted(tmp_path: Path) -> None:
    options = (*OPTIONS, "--storage", str(tmp_path), "--storage-tokens", str(10 * PAGE))
    with running_engine(*options) as engine:
        code, out, err = run_to_end("--port", "0", *options)
        assert (code, out) == (2, "")
        assert err == f"kvevents: storage: {tmp_path}/rank0 is in use by another process\n"
        complete(engine, prompt(0))
        metrics = httpx.get(f"{engine.url}/metrics").text
        assert 'kvevents_engine_tier_failures_total{dp_rank="0",reason="storage_full"} 1.0' in metrics
