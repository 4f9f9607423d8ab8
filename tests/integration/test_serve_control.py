"""Decisions, matches and figures over HTTP."""

import aiohttp
import pytest

from kvevents.server import WorkerSettings
from kvevents.transport import State
from serving import fleet, get, post, router, run, text, with_events

pytestmark = pytest.mark.integration

PROMPT = list(range(256))
FAILED_PROBES = "kvevents_worker_probes_failed_total"


def test_route_says_where_and_why_and_sends_nothing() -> None:
    async def test() -> None:
        async with fleet() as (url, (one, other), (_, events)):
            events.store(PROMPT[:192], block_size=64)
            events.say(State.LIVE)
            decision = await post(url, "/route", {"token_ids": PROMPT})
            assert decision["worker"] == other.id
            assert decision["url"] == other.url
            assert decision["dp_rank"] == 0
            assert decision["usable"] == 3
            assert decision["cached_tokens"] == 192
            assert decision["prompt_tokens"] == 256
            assert decision["policy"] == "kv"
            assert decision["block_size"] == 64
            assert other.id in decision["reason"]
            chosen, rival = decision["scores"]
            assert (chosen["worker"], chosen["usable"], chosen["prefill"], chosen["state"]) == (other.id, 3, 64, "live")
            assert (rival["worker"], rival["usable"], rival["prefill"]) == (one.id, 0, 256)
            assert chosen["cost"] < rival["cost"]
            assert one.arrived == other.arrived == []
            ranks = [worker["ranks"][0] for worker in (await get(url, "/stats"))["workers"]]
            assert [rank["requests"] for rank in ranks] == [0, 0]

    run(test)


def test_route_takes_every_form_of_prompt() -> None:
    async def test() -> None:
        text = "x" * 130
        simulated = {"model": "kvevents-sim"}
        taken: list[tuple[dict[str, object], int]] = [
            ({"text": text, **simulated}, 130),
            ({"prompt": text, "max_tokens": 3, "stream": True, **simulated}, 130),
            ({"prompt": PROMPT}, 256),
            ({"token_ids": PROMPT}, 256),
            ({"messages": [{"role": "user", "content": text}], **simulated}, 130 + len("<|user|>\n\n<|assistant|>\n")),
        ]
        refused: list[object] = [
            {},
            {"text": "a", "token_ids": [1]},
            {"token_ids": [-1]},
            {"token_ids": [2**70]},
            {"text": 3},
            [],
        ]
        async with fleet(1) as (url, _, _):
            for body, tokens in taken:
                assert (await post(url, "/route", body))["prompt_tokens"] == tokens
            for wrong in refused:
                error = (await post(url, "/route", wrong, status=400))["error"]
                assert set(error) == {"code", "message"}

    run(test)


@pytest.mark.parametrize("policy", ["kv", "approx", "round_robin", "least_loaded"])
def test_route_says_what_happens_next_and_changes_nothing(policy: str) -> None:
    async def test() -> None:
        async with fleet(3, policy=policy) as (url, _, _):
            for number in range(6):
                body = {"prompt": PROMPT[: 64 * number + 64], "max_tokens": 1}
                asked = [await post(url, "/route?explain=1", body) for _ in range(3)]
                assert asked[0] == asked[1] == asked[2]
                async with aiohttp.ClientSession(url) as http, http.post("/v1/completions", json=body) as response:
                    assert response.headers["x-kvevents-worker"] == asked[0]["worker"]
                    assert response.headers["x-kvevents-expected-cached-tokens"] == str(asked[0]["cached_tokens"])

    run(test)


def test_workers_that_never_answered_are_named_and_none_at_all_is_no_unknown_model() -> None:
    async def test() -> None:
        body = {"model": "stub", "prompt": PROMPT}
        async with fleet(1) as (_, (stub,), _):
            url = stub.url
        async with router(workers=(WorkerSettings(url=url),)) as (at, _):
            for path in ("/v1/completions", "/route"):
                error = (await post(at, path, body, status=503))["error"]
                assert error["code"] == "no_worker"
                assert "none of 1 workers has answered yet" in error["message"]
                assert url.removeprefix("http://") in error["message"]
        async with router(workers=()) as (at, _):
            error = (await post(at, "/v1/completions", body, status=503))["error"]
            assert (error["code"], error["message"]) == ("no_worker", "no worker is registered: add one")

    run(test)


def test_query_says_what_each_worker_holds() -> None:
    async def test() -> None:
        async with fleet() as (url, (one, other), (first, second)):
            first.store(PROMPT[:64], block_size=64)
            second.store(PROMPT[:128], block_size=64)
            first.say(State.LIVE)
            second.say(State.DEGRADED)
            answered = await post(url, "/query", {"token_ids": PROMPT})
            assert (answered["block_size"], answered["blocks"]) == (64, 4)
            matches = {match["worker"]: match for match in answered["matches"]}
            assert matches[one.id]["total"] == matches[one.id]["usable"] == 1
            assert matches[one.id]["state"] == "live"
            assert matches[other.id]["total"] == 2
            assert matches[other.id]["tiers"]["GPU"] == matches[other.id]["fastest"]["GPU"] == 2
            assert matches[other.id]["state"] == "degraded"
            assert matches[other.id]["dp_rank"] == 0

    run(test)


def test_holdings_are_what_the_index_believes() -> None:
    async def test() -> None:
        async with fleet(2) as (url, (one, other), (events, _)):
            events.store(PROMPT[:128], block_size=64)
            (rank,) = (await get(url, f"/holdings/{one.id}"))["ranks"]
            assert (rank["dp_rank"], rank["seq"]) == (0, None)
            assert rank["tiers"]["GPU"] == [1, 2]
            assert all(
                not blocks
                for rank in (await get(url, f"/holdings/{other.id}"))["ranks"]
                for blocks in rank["tiers"].values()
            )
            async with aiohttp.ClientSession(url) as http, http.get("/holdings/nobody") as response:
                assert response.status == 404
                assert (await response.json())["error"]["code"] == "no_such_worker"

    run(test)


def test_salted_prompts_meet_only_their_own() -> None:
    async def test() -> None:
        async with fleet(1) as (url, _, (events,)):
            events.store(PROMPT, block_size=64, cache_salt="tenant")
            events.say(State.LIVE)
            longer = [
                *PROMPT,
                256,
            ]  # an engine always computes a prompt's last token, so the fourth block needs one more
            assert (await post(url, "/route", {"token_ids": longer, "cache_salt": "tenant"}))["usable"] == 4
            assert (await post(url, "/route", {"token_ids": PROMPT, "cache_salt": "tenant"}))["usable"] == 3
            assert (await post(url, "/route", {"token_ids": longer}))["usable"] == 0
            assert "tenant" not in str(await get(url, "/stats"))

    run(test)


def test_completions_follow_the_events() -> None:
    async def test() -> None:
        async with fleet(4) as (url, stubs, events), aiohttp.ClientSession(url) as http:
            events[2].store(PROMPT, block_size=64)
            events[2].say(State.LIVE)
            for _ in range(3):
                async with http.post("/v1/completions", json={"prompt": PROMPT}) as response:
                    assert response.headers["x-kvevents-worker"] == stubs[2].id
                    assert response.headers["x-kvevents-expected-cached-blocks"] == "3"
            figures = (await get(url, "/stats"))["requests"]["kv"]
            assert figures["expected_cached_tokens"] == 3 * 192
            assert figures["missed_cached_tokens"] == 0

    run(test)


def test_ranks_are_addressed_where_there_are_several() -> None:
    async def test() -> None:
        async with (
            fleet(1, discover=with_events(ranks=2)) as (url, (engine,), (events,)),
            aiohttp.ClientSession(url) as http,
        ):
            events.store(PROMPT, block_size=64, dp_rank=1)
            events.say(State.LIVE, dp_rank=1)
            async with http.post("/v1/completions", json={"prompt": PROMPT}) as response:
                assert response.headers["x-kvevents-dp-rank"] == "1"
            assert engine.completions[0].headers["x-data-parallel-rank"] == "1"
            (worker,) = (await get(url, "/workers"))["workers"]
            assert [rank["dp_rank"] for rank in worker["ranks"]] == [0, 1]
            assert [source["state"] for source in worker["sources"]] == ["connecting", "live"]

    run(test)


def test_the_policy_changes_while_it_runs() -> None:
    async def test() -> None:
        async with fleet() as (url, _, _), aiohttp.ClientSession(url) as http:
            assert await post(url, "/policy", {"policy": "round_robin"}) == {"policy": "round_robin"}
            async with http.post("/v1/completions", json={"prompt": PROMPT}) as response:
                assert response.status == 200
            figures = await get(url, "/stats")
            assert figures["policy"] == "round_robin"
            assert figures["requests"]["round_robin"]["requests"] == 1
            error = (await post(url, "/policy", {"policy": "fastest"}, status=400))["error"]
            assert "kv, approx, round_robin, random, least_loaded" in error["message"]

    run(test)


def test_ready_waits_for_pictures_that_are_being_built() -> None:
    async def test() -> None:
        async with fleet(2) as (url, _, (one, other)), aiohttp.ClientSession(url) as http:

            async def ready() -> int:
                async with http.get("/ready") as response:
                    return response.status

            assert await ready() == 503
            one.say(State.LIVE)
            other.say(State.RECOVERING)
            assert await ready() == 503
            other.say(State.DEGRADED)
            assert await ready() == 200
            assert await get(url, "/health") == {"status": "ok"}

    run(test)


def test_two_apps_in_one_process_do_not_meet() -> None:
    async def test() -> None:
        async with fleet(1) as (url, _, _), fleet(1) as (other_url, _, _):
            await post(url, "/policy", {"policy": "random"})
            assert (await get(other_url, "/stats"))["policy"] == "kv"
            assert "kvevents_worker_up" in await text(other_url, "/metrics")

    run(test)


def test_unknown_paths_and_methods_are_json_errors() -> None:
    async def test() -> None:
        async with fleet(1) as (url, _, _), aiohttp.ClientSession(url) as http:
            for method, path, status, code in (
                ("GET", "/nothing", 404, "not_found"),
                ("PUT", "/stats", 405, "method_not_allowed"),
                ("GET", "/v1/completions", 405, "method_not_allowed"),
                ("POST", "/v1/nothing", 404, "not_found"),
            ):
                async with http.request(method, path) as response:
                    assert response.status == status
                    error = (await response.json())["error"]
                    assert error["code"] == code
                    assert ("type" in error) == path.startswith("/v1/")
            for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE"):
                async with http.request(method, "/v1/completions") as response:
                    assert (response.status, response.headers["allow"]) == (405, "POST")

    run(test)
