"""Adapters of the simulated engine: requests name them, events have their names, their blocks are their own."""

import httpx
import pytest

from engine_process import running_engine
from kvevents.index import PrefixIndex
from kvevents.transport import State, Subscriber, discover
from reached import reached

EVENTS = '{"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"}'
PROMPT = list(range(1000, 1064))

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("cache", ["radix", "block_pool"])
def test_blocks_of_an_adapter_are_its_own_under_the_name_in_events(cache: str) -> None:
    adapters = ("--adapter", "sql", "--adapter", "code=code-v2")
    with running_engine("--cache", cache, "--page-size", "16", *adapters, "--kv-events-config", EVENTS) as engine:
        models = httpx.get(f"{engine.url}/v1/models").json()["data"]
        assert [model["id"] for model in models] == ["kvevents-sim", "sql", "code"]
        for body, cached in (
            ({"model": "kvevents-sim"}, 0),
            ({"model": "sql"}, 0),
            ({"model": "code"}, 0),
            ({"lora_path": "sql"}, 48),
        ):
            answer = httpx.post(f"{engine.url}/v1/completions", json=body | {"prompt": PROMPT, "max_tokens": 1})
            assert answer.raise_for_status().json()["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
        refused = httpx.post(f"{engine.url}/v1/completions", json={"lora_path": "none", "prompt": PROMPT})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "lora_path")
        index = PrefixIndex(16)
        with Subscriber(discover(engine.url, worker_id="w"), index) as subscriber:
            reached(subscriber, State.LIVE)
    assert [len(index.match(PROMPT, lora_name=name)) for name in (None, "sql", "code", "code-v2")] == [1, 1, 0, 1]
