"""A simulated vLLM as a process: what an index of its events says, and what the engine says."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from engine_process import EngineProcess, running_engine
from kvevents.index import PrefixIndex
from kvevents.transport import Subscriber, discover
from zmq_peers import until

pytestmark = pytest.mark.integration
PAGE = 16
EVENTS = '{"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*", "topic": "kv-events"}'
OPTIONS = (
    *("--cache", "block_pool", "--hash-seed", "0", "--page-size", str(PAGE), "--max-total-tokens", str(40 * PAGE)),
    *("--chunked-prefill-size", "100", "--dp-size", "2", "--speed", "200", "--kv-events-config", EVENTS),
)


def complete(engine: EngineProcess, prompt: list[int], rank: int, outputs: int = 8) -> int:
    """Send a prompt to a rank; how much of it was cached."""
    body = {"model": "kvevents-sim", "prompt": prompt, "max_tokens": outputs}
    headers = {"x-data-parallel-rank": str(rank)}
    answer = httpx.post(f"{engine.url}/v1/completions", json=body, headers=headers, timeout=30)
    usage: dict[str, Any] = answer.raise_for_status().json()["usage"]
    cached: int = usage["prompt_tokens_details"]["cached_tokens"]
    return cached


def holdings(engine: EngineProcess) -> dict[int, set[int]]:
    """Blocks of each rank, as the engine says."""
    ranks = httpx.get(f"{engine.url}/holdings", timeout=30).raise_for_status().json()["ranks"]
    return {rank["dp_rank"]: set(rank["tiers"]["GPU"]) for rank in ranks}


@pytest.mark.parametrize("options", [(), ("--async-scheduling",)])
def test_an_index_of_its_events_knows_what_it_holds_and_what_it_will_find(options: tuple[str, ...]) -> None:
    index = PrefixIndex(PAGE)

    def held(rank: int) -> set[int]:
        return index.holdings("w").get(rank, {}).get("GPU", set())

    def agrees() -> bool:
        return all(held(rank) == blocks for rank, blocks in holdings(engine).items())

    with running_engine(*OPTIONS, *options) as engine:
        sources = discover(engine.url, worker_id="w")
        with Subscriber(sources, index):
            for start in range(6):
                prompt = [*range(200), *range(1000 * start, 1000 * start + 90)]
                for _ in range(2):
                    usable = next((match.usable for match in index.match(prompt) if match.dp_rank == 0), 0)
                    assert complete(engine, prompt, 0) == min(usable, (len(prompt) - 1) // PAGE) * PAGE
                    until(agrees)
            assert held(0)
            assert not held(1)
            with ThreadPoolExecutor(8) as pool:
                jobs = [
                    pool.submit(
                        complete,
                        engine,
                        [*range(number % 5 * 40), *range(number * 100, number * 100 + 70)],
                        number % 2,
                        40,
                    )
                    for number in range(24)
                ]
                assert all(job.result() >= 0 for job in jobs)
            until(agrees)
            assert httpx.post(f"{engine.url}/flush_cache", timeout=30).is_success
            assert holdings(engine) == {0: set(), 1: set()}
            until(agrees)
    index.check_integrity()
