"""`GET /prefixes` of a router in this process, and what a cache that forgets nothing would have had."""

import asyncio

import aiohttp
import pytest

from serving import fleet, get, post, run, until, with_events

pytestmark = pytest.mark.integration

BLOCK = 16
SALT = "tenant-7-secret"


def prompt(end: int) -> list[int]:
    """Four blocks that all begin with, then two of their own."""
    return [*range(4 * BLOCK), *range(10_000 * end, 10_000 * end + 2 * BLOCK + 1)]


def test_shared_prefixes_are_told_with_their_holders_and_hits_and_without_what_is_in_them() -> None:
    async def test() -> None:
        async with fleet(2, discover=with_events(block_size=BLOCK), block_size=BLOCK) as (url, engines, sources):
            assert (await get(url, "/prefixes"))["stretches"] == []
            sources[0].store(prompt(1)[:-1], block_size=BLOCK)
            sources[1].store(prompt(2)[:-1], block_size=BLOCK)
            for end in (1, 1, 2):
                await post(url, "/v1/completions", {"prompt": prompt(end), "max_tokens": 1})
            answer = await get(url, "/prefixes")
            shared, *ends = answer["stretches"]
            assert (shared["blocks"], shared["below"], shared["children"], shared["hits"]) == (4, 4, 2, 3)
            assert [holder["worker"] for holder in shared["holders"]] == sorted(engine.id for engine in engines)
            assert shared["holders"][0]["tiers"] == ["GPU"]
            assert [(one["blocks"], one["hits"], one["held_by"]) for one in ends] == [(2, 2, 1), (2, 1, 1)]
            assert (answer["requests"], answer["requests_followed"]) == (3, 3)
            below = await get(url, f"/prefixes?at={ends[1]['id']}&depth=2&limit=10")
            assert below["path"] == [shared["id"]]
            assert [one["id"] for one in below["stretches"]] == [ends[1]["id"]]
            index_hashes = {one["id"] for one in answer["stretches"]}
            assert all(len(name) == 16 for name in index_hashes)

    run(test)


def test_a_salt_is_nowhere_in_it() -> None:
    async def test() -> None:
        async with fleet(1, discover=with_events(block_size=BLOCK), block_size=BLOCK) as (url, _engines, sources):
            sources[0].store(prompt(1)[:-1], block_size=BLOCK, cache_salt=SALT)
            await post(url, "/v1/completions", {"prompt": prompt(1), "cache_salt": SALT, "max_tokens": 1})
            async with aiohttp.ClientSession(url) as http:
                for path in ("/prefixes", "/stats?history=1"):
                    async with http.get(path) as response:
                        text = await response.text()
                        assert response.status == 200
                        assert "secret" not in text
            assert (await get(url, "/prefixes"))["stretches"][0]["hits"] == 1

    run(test)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("at=nonsense", 400, "bad_request"),
        ("at=0123456789abcdef", 404, "no_such_prefix"),
        ("depth=0", 400, "bad_request"),
        ("depth=33", 400, "bad_request"),
        ("limit=1001", 400, "bad_request"),
        ("limit=%C2%B2", 400, "bad_request"),
        ("limit=-1", 400, "bad_request"),
    ],
)
def test_what_cannot_be_told_is_refused(query: str, status: int, code: str) -> None:
    async def test() -> None:
        async with (
            fleet(1) as (url, _engines, _sources),
            aiohttp.ClientSession(url) as http,
            http.get(f"/prefixes?{query}") as response,
        ):
            assert response.status == status
            assert (await response.json())["error"]["code"] == code

    run(test)


def test_an_all_knowing_cache_has_what_any_worker_was_ever_sent() -> None:
    async def test() -> None:
        async with fleet(2, block_size=BLOCK) as (url, _engines, _sources):
            for end in (1, 2, 1):
                await post(url, "/v1/completions", {"prompt": prompt(end), "max_tokens": 1})

            async def is_over() -> bool:
                recent = (await get(url, "/stats"))["recent"]
                return bool(recent["requests"] == 3)

            await until(is_over)
            recent = (await get(url, "/stats"))["recent"]
            assert recent["all_knowing_cached_tokens"] == (0 + 4 + 6) * BLOCK
            assert recent["all_knowing_hit_rate"] == pytest.approx(160 / (3 * 97))

    run(test)


def test_many_who_look_at_once_wait_for_each_other() -> None:
    async def test() -> None:
        async with fleet(1) as (url, _engines, _sources):
            answers = await asyncio.gather(*(get(url, "/prefixes") for _ in range(20)))
            assert {answer["total_blocks"] for answer in answers} == {0}

    run(test)
