"""A running router's metrics, as Prometheus gets them."""

import asyncio
import time

import aiohttp
import pytest
from prometheus_client import Metric

from kvevents.server.metrics.reference import SECTIONS
from kvevents.server.metrics.requests import OTHER_MODEL
from kvevents.transport import State
from metrics_lint import faults, parse
from serving import FakeSource, fleet, get, run, text

pytestmark = pytest.mark.integration

PROMPT = list(range(256))
OWN = ("_bucket", "_sum", "_count")
FAMILIES = {family.name: family for families in SECTIONS.values() for family in families}


async def ask(url: str, **body: object) -> int:
    async with aiohttp.ClientSession(url) as http, http.post("/v1/completions", json=body) as response:
        await response.read()
        return response.status


def values(metrics: list[Metric], name: str) -> dict[tuple[str, ...], float]:
    """A metric's values by their labels, in the order of the names of these."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for metric in metrics
        for sample in metric.samples
        if sample.name == name
    }


def hold(source: FakeSource) -> None:
    source.store(PROMPT, block_size=64)
    source.say(State.LIVE)


def test_every_metric_is_told_and_keeps_the_conventions() -> None:
    async def test() -> None:
        async with fleet(2) as (url, _, (one, other)):
            hold(one)
            other.say(State.DEGRADED)
            assert await ask(url, model="stub", prompt=PROMPT) == 200
            page = await text(url, "/metrics")
            assert faults(page) == []
            typed = {line.split(" ")[2]: line.split(" ")[3] for line in page.splitlines() if line.startswith("# TYPE")}
            assert typed == {name: family.kind for name, family in FAMILIES.items()}
            for metric in parse(page):
                for sample in metric.samples:
                    name = sample.name
                    if name not in FAMILIES:
                        name = next(name.removesuffix(suffix) for suffix in OWN if name.endswith(suffix))
                    assert set(sample.labels) - {"le"} == set(FAMILIES[name].labels), sample

    run(test)


def test_figures_are_those_of_the_requests() -> None:
    async def test() -> None:
        async with fleet(2) as (url, (engine, rival), (one, other)):
            hold(one)
            other.say(State.LIVE)
            assert await ask(url, model="stub", prompt=PROMPT) == 200
            metrics = parse(await text(url, "/metrics"))
            assert values(metrics, "kvevents_attempts_total") == {("ok", engine.id): 1}
            assert values(metrics, "kvevents_requests_total") == {("stub", "200"): 1}
            assert values(metrics, "kvevents_request_seconds_count") == {(): 1}
            assert values(metrics, "kvevents_accepted_requests_total") == {(): 1}
            assert values(metrics, "kvevents_in_flight_requests") == {(): 0}
            assert values(metrics, "kvevents_prompts_total") == {("ids",): 1}
            assert values(metrics, "kvevents_worker_expected_cached_tokens_total") == {(engine.id,): 192}
            assert values(metrics, "kvevents_worker_reported_cached_tokens_total") == {(engine.id,): 128}
            assert values(metrics, "kvevents_worker_overstated_cached_tokens_total") == {(engine.id,): 64}
            assert values(metrics, "kvevents_worker_understated_cached_tokens_total") == {(engine.id,): 0}
            assert values(metrics, "kvevents_policy_requests_total") == {("kv",): 1}
            assert values(metrics, "kvevents_worker_first_byte_seconds_count") == {(engine.id,): 1}
            assert values(metrics, "kvevents_select_seconds_count") == {(): 1}
            states = values(metrics, "kvevents_source_state")
            assert states["0", "live", engine.id] == 1
            assert states["0", "degraded", engine.id] == 0
            assert len(states) == 2 * len(State)
            held = values(metrics, "kvevents_index_held_blocks")
            assert held["0", "GPU", engine.id] == 4
            assert values(metrics, "kvevents_worker_up") == {(engine.id,): 1, (rival.id,): 1}

    run(test)


def test_labels_of_a_removed_worker_vanish() -> None:
    async def test() -> None:
        async with fleet(2) as (url, (engine, rival), (one, other)):
            hold(one)
            other.say(State.LIVE)
            assert await ask(url, prompt=PROMPT) == 200
            assert engine.id in await text(url, "/metrics")
            async with aiohttp.ClientSession(url) as http, http.delete(f"/workers/{engine.id}") as response:
                assert response.status == 204
            page = await text(url, "/metrics")
            assert engine.id not in page
            assert rival.id in page

    run(test)


def test_a_model_that_nobody_serves_makes_no_label() -> None:
    async def test() -> None:
        async with fleet(1) as (url, _, _):
            for number in range(5):
                await ask(url, model=f"made-up-{number}", prompt=PROMPT)
            page = await text(url, "/metrics")
            assert "made-up" not in page
            ((model, _),) = values(parse(page), "kvevents_requests_total")
            assert model == OTHER_MODEL

    run(test)


def test_requests_go_on_while_64_workers_are_told() -> None:
    """The loop is never held for long: by the CPU time of its longest step."""

    async def test() -> None:
        async with fleet(64) as (url, _, sources):
            for source in sources:
                hold(source)
            longest = 0.0
            is_over = asyncio.Event()

            async def look() -> None:
                nonlocal longest
                while not is_over.is_set():
                    began = time.thread_time()
                    await asyncio.sleep(0)
                    longest = max(longest, time.thread_time() - began)

            looking = asyncio.create_task(look())
            page = await text(url, "/metrics")
            is_over.set()
            await looking
            assert page.count("kvevents_worker_up{") == 64
            assert longest < 0.01
            assert len((await get(url, "/stats"))["workers"]) == 64

    run(test)


def test_readers_of_the_stream_are_counted() -> None:
    async def test() -> None:
        async with fleet(1) as (url, _, _), aiohttp.ClientSession(url) as http, http.get("/stream") as response:
            assert response.status == 200
            await response.content.readline()
            assert values(parse(await text(url, "/metrics")), "kvevents_stream_readers") == {(): 1}

    run(test)
