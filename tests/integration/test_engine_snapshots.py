"""Engines that can repeat hardly anything: a router that comes late has a snapshot, or says that it does not know."""

import json
from collections.abc import Sequence

import httpx
import pytest

from engine_process import EngineProcess, running_engine
from kvevents.index import PrefixIndex
from kvevents.transport import Reason, State, Subscriber, discover
from zmq_peers import until

pytestmark = pytest.mark.integration
PAGE = 16
RANKS = 2
PROMPTS = 12


def options(*cache: str, snapshot: bool) -> Sequence[str]:
    events = {"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*", "buffer_steps": 2}
    if not snapshot:
        events |= {"snapshot": False}
    return (
        *("--page-size", str(PAGE), "--max-total-tokens", str(100 * PAGE), "--dp-size", str(RANKS), "--speed", "200"),
        *("--kv-events-config", json.dumps(events), *cache),
    )


def fill(engine: EngineProcess) -> None:
    """More prompts than the cache has room for, so that much of what was stored is gone again."""
    for number in range(PROMPTS):
        body = {"prompt": list(range(1000 * number, 1000 * number + 20 * PAGE)), "max_tokens": 2}
        headers = {"x-data-parallel-rank": str(number % RANKS)}
        httpx.post(f"{engine.url}/v1/completions", json=body, headers=headers, timeout=30).raise_for_status()


def known(index: PrefixIndex) -> dict[int | None, dict[str, set[int]]]:
    return {
        rank: {tier: set(blocks) for tier, blocks in tiers.items() if blocks}
        for rank, tiers in index.holdings("w").items()
    }


@pytest.mark.parametrize("cache", [("radix",), ("block_pool", "--hash-seed", "0"), ("hierarchical",)])
def test_a_late_router_is_live_and_right(cache: tuple[str, ...]) -> None:
    index = PrefixIndex(PAGE)
    with running_engine(*options("--cache", *cache, snapshot=True)) as engine:
        assert engine.kv_events["snapshot"] is True
        fill(engine)
        with Subscriber(discover(engine.url, worker_id="w"), index) as subscriber:
            assert subscriber.wait_live(30)
            assert known(index) == engine.holdings()
            for rank in range(RANKS):
                assert subscriber.state("w", rank).counters.snapshots == 1
            fill(engine)
            until(lambda: known(index) == engine.holdings(), "agreement after the snapshot")


def test_without_snapshots_it_says_that_it_does_not_know() -> None:
    index = PrefixIndex(PAGE)
    with running_engine(*options("--cache", "radix", snapshot=False)) as engine:
        assert "snapshot" not in engine.kv_events
        fill(engine)
        with Subscriber(discover(engine.url, worker_id="w"), index) as subscriber:

            def said() -> set[tuple[State, Reason]]:
                states = [subscriber.state("w", rank) for rank in range(RANKS)]
                return {(state.state, state.code) for state in states}

            until(lambda: said() == {(State.DEGRADED, Reason.REPLAY_STARTS_LATE)}, "degraded")
