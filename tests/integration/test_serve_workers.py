"""Workers that join, leave, fail and come back, with and without events."""

from typing import Any

import aiohttp
import pytest

from kvevents.errors import TransportError
from kvevents.transport import Source, State
from serving import FakeSubscriber, answer, engines, fleet, get, post, routing, run, text, until, with_events

pytestmark = pytest.mark.integration

PROMPT = list(range(256))
FAILED_PROBES = "kvevents_worker_probes_failed_total"


def test_workers_without_events_get_requests_and_say_so() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine) as url:
            assert (await post(url, "/route", {"token_ids": PROMPT}))["worker"] == engine.id
            (worker,) = (await get(url, "/workers"))["workers"]
            assert worker["up"]
            assert "publishes no events" in worker["events"]
            assert worker["sources"] == []
            assert worker["models"] == ["stub"]

    run(test)


def test_workers_join_and_leave_over_http() -> None:
    async def test() -> None:
        async with engines(answer) as (late,), fleet(1) as (url, (first,), opened):
            added = await post(url, "/workers", {"url": late.url, "id": "late"}, status=201)
            assert (added["id"], added["url"], added["up"], added["events"]) == ("late", late.url, True, "received")
            await post(url, "/workers", {"url": late.url, "id": "late"}, status=201)
            assert len(opened) == 2
            opened[1].store(PROMPT, block_size=64)
            opened[1].say(State.LIVE)
            assert (await post(url, "/route", {"token_ids": PROMPT}))["worker"] == "late"
            async with aiohttp.ClientSession(url) as http:
                async with http.delete("/workers/late") as response:
                    assert response.status == 204
                async with http.delete("/workers/late") as response:
                    assert response.status == 404
            assert opened[1].is_closed
            assert not opened[0].is_closed
            decision = await post(url, "/route", {"token_ids": PROMPT})
            assert (decision["worker"], decision["usable"]) == (first.id, 0)
            await post(url, "/workers", {"url": late.url, "id": "late"}, status=201)
            scores = (await post(url, "/route", {"token_ids": PROMPT}))["scores"]
            assert {score["worker"]: score["usable"] for score in scores}["late"] == 0  # it starts anew

    run(test)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"url": "http://169.254.169.254"}, 403, "host_not_allowed"),
        ({"url": "file:///etc/passwd"}, 400, "bad_request"),
        ({"url": "http://user:hunter2@127.0.0.1:1"}, 400, "bad_request"),
        ({"url": "http://127.0.0.1:99999"}, 400, "bad_request"),
        ({"url": "http://127.0.0.1:1", "id": "a\r\nx-other: b"}, 400, "bad_request"),
        ({"url": "http://127.0.0.1:1", "id": "a b"}, 400, "bad_request"),
        ({"url": 3}, 400, "bad_request"),
        ({"url": "http://127.0.0.1:1", "rank": 0}, 400, "bad_request"),
        ([], 400, "bad_request"),
    ],
)
def test_workers_that_cannot_be_added(body: object, status: int, code: str) -> None:
    async def test() -> None:
        async with fleet(1) as (url, stubs, _):
            error = (await post(url, "/workers", body, status=status))["error"]
            assert error["code"] == code
            assert "hunter2" not in error["message"]
            taken = {"url": "http://127.0.0.1:1", "id": stubs[0].id}
            assert (await post(url, "/workers", taken, status=409))["error"]["code"] == "worker_exists"

    run(test)


@pytest.mark.parametrize(("sizes", "expected"), [((64, 64), 64), ((16, 64), 64), ((1, 1), 16), ((48, 64), 192)])
def test_the_index_takes_its_blocks_from_the_engines(sizes: tuple[int, int], expected: int) -> None:
    async def test() -> None:
        left = list(sizes)

        def discover(url: str, **options: Any) -> Any:
            return with_events(block_size=left.pop())(url, **options)

        async with fleet(2, discover=discover) as (url, _, opened):
            assert (await get(url, "/stats"))["block_size"] == expected
            assert len(opened) == 2

    run(test)


def test_an_engine_whose_blocks_do_not_fit_says_what_to_do() -> None:
    async def test() -> None:
        async with fleet(1, discover=with_events(block_size=48), block_size=64) as (url, _, opened):
            (worker,) = (await get(url, "/workers"))["workers"]
            assert worker["up"]
            assert "--block-size 192" in worker["events"]
            assert opened == []
            await post(url, "/route", {"token_ids": PROMPT})

    run(test)


def test_a_source_that_cannot_be_opened_is_told_and_requests_go_on() -> None:
    async def test() -> None:
        class Refusing(FakeSubscriber):
            def add_source(self, source: Source) -> None:
                raise TransportError(f"{source.endpoint} is in use")

        async with engines(answer) as (engine,), routing(engine, discover=with_events(), subscribe=Refusing()) as url:
            (worker,) = (await get(url, "/workers"))["workers"]
            assert worker["events"] == "tcp://127.0.0.1:5557 is in use"
            assert (await post(url, "/route", {"token_ids": PROMPT}))["worker"] == engine.id

    run(test)


def test_an_engine_that_comes_back_is_discovered_again() -> None:
    async def test() -> None:
        asked: list[str] = []

        def discover(url: str, **options: Any) -> list[Source]:
            asked.append(url)
            sources = with_events(ranks=1 if len(asked) == 1 else 2)(url, **options)
            return list(sources)

        async with fleet(1, discover=discover, probe_interval_s=0.02) as (url, (engine,), opened):
            port = int(engine.url.rpartition(":")[2])
            await engine.stop()

            async def is_up(wanted: bool, ranks: int) -> bool:
                (worker,) = (await get(url, "/workers"))["workers"]
                return (worker["up"], len(worker["ranks"])) == (wanted, ranks)

            await until(lambda: is_up(False, 1))
            await engine.start(port)
            await until(lambda: is_up(True, 2))
            assert [subscription.is_closed for subscription in opened] == [True, False]
            assert len(asked) == 2

    run(test)


@pytest.mark.parametrize("seen", [(State.LOST, 0), (State.LIVE, 1)], ids=["still lost", "connected again"])
def test_another_engine_that_came_between_two_probes_is_discovered(seen: tuple[State, int]) -> None:
    async def test() -> None:
        ranks = 1

        def discover(url: str, **options: Any) -> Any:
            return with_events(ranks=ranks)(url, **options)

        async with fleet(1, discover=discover, probe_interval_s=0.02) as (url, _, opened):
            opened[0].store(PROMPT, block_size=64)
            opened[0].say(State.LIVE)
            ranks = 2
            opened[0].say(seen[0], reconnects=seen[1])

            async def has_two_ranks() -> bool:
                (worker,) = (await get(url, "/workers"))["workers"]
                return len(worker["ranks"]) == len(worker["sources"]) == 2

            await until(has_two_ranks)
            assert [subscription.is_closed for subscription in opened] == [True, False]
            assert (await post(url, "/query", {"token_ids": PROMPT}))["matches"] == []  # of the engine that was there

    run(test)


def test_an_engine_that_came_back_unchanged_keeps_its_sources() -> None:
    async def test() -> None:
        asked: list[str] = []

        def discover(url: str, **options: Any) -> Any:
            asked.append(url)
            return with_events()(url, **options)

        async with fleet(1, discover=discover, probe_interval_s=0.02) as (url, _, opened):
            opened[0].store(PROMPT, block_size=64)
            opened[0].say(State.LIVE, reconnects=1)

            async def is_asked_again() -> bool:
                return len(asked) == 2

            await until(is_asked_again)
            await post(url, "/workers", {"url": asked[0]}, status=201)  # a whole round later
            assert (len(asked), opened[0].is_closed) == (2, False)
            assert len((await post(url, "/query", {"token_ids": PROMPT}))["matches"]) == 1

    run(test)


def test_a_worker_that_hangs_is_down_and_says_for_how_long() -> None:
    async def test() -> None:
        async with fleet(2, probe_interval_s=0.02, probe_timeout_s=0.05) as (url, (hung, other), _):
            hung.health = None

            async def is_down() -> bool:
                worker, _ = (await get(url, "/workers"))["workers"]
                return (worker["up"], worker["reason"]) == (False, "/health: no answer within 0.05 s")

            await until(is_down)
            assert (await post(url, "/route", {"token_ids": PROMPT}))["worker"] == other.id

    run(test)


def test_wrong_health_answers_take_a_worker_out_and_lose_no_count() -> None:
    async def test() -> None:
        async with fleet(1, probe_interval_s=0.02) as (url, (engine,), _):

            async def is_up(wanted: bool) -> bool:
                (worker,) = (await get(url, "/workers"))["workers"]
                return bool(worker["up"] is wanted)

            async def failed_probes() -> float:
                (line,) = (
                    line for line in (await text(url, "/metrics")).splitlines() if line.startswith(FAILED_PROBES)
                )
                return float(line.split()[-1])

            engine.health = "503 Service Unavailable"
            await until(lambda: is_up(False))
            assert "503" in (await get(url, "/workers"))["workers"][0]["reason"]
            engine.health = "200 OK"
            await until(lambda: is_up(True))
            assert await failed_probes() >= 2

    run(test)
