"""Tokens, the login and what browsers are made to send, over real connections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from kvevents.server import Secret
from serving import fleet, run

pytestmark = pytest.mark.integration

TOKENS = {"client_token": Secret("client-0123"), "admin_token": Secret("admin-4567")}
ADMIN = {"authorization": "Bearer admin-4567"}


@asynccontextmanager
async def guarded(**options: Any) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    async with (
        fleet(1, **TOKENS, **options) as (url, _, _),
        aiohttp.ClientSession(url, cookie_jar=aiohttp.CookieJar(unsafe=True)) as http,
    ):
        yield url, http


async def status(http: aiohttp.ClientSession, method: str, path: str, **options: Any) -> int:
    async with http.request(method, path, allow_redirects=False, **options) as response:
        return response.status


def test_each_path_has_its_scope() -> None:
    async def test() -> None:
        async with guarded(wrong_tokens_per_minute=1000) as (_, http):
            for method, path in (
                ("GET", "/stats"),
                ("GET", "/stream"),
                ("GET", "/workers"),
                ("POST", "/workers"),
                ("DELETE", "/workers/x"),
                ("GET", "/holdings/x"),
                ("POST", "/policy"),
                ("POST", "/route"),
                ("POST", "/query"),
                ("GET", "/metrics"),
                ("GET", "/nothing"),
            ):
                assert await status(http, method, path) == 401
                assert await status(http, method, path, headers={"authorization": "Bearer client-0123"}) == 401
            for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/v1/completions")):
                assert await status(http, method, path) == 401
                assert await status(http, method, path, headers={"authorization": "Bearer x"}) == 401
            assert await status(http, "GET", "/v1/models", headers={"authorization": "Bearer client-0123"}) == 200
            assert await status(http, "GET", "/stats", headers=ADMIN) == 200
            assert await status(http, "GET", "/health") == 200

    run(test)


def test_the_dashboard_logs_in_once() -> None:
    async def test() -> None:
        async with guarded() as (url, http):
            async with http.get("/") as response:
                assert (response.status, response.content_type) == (401, "text/html")
            async with http.post("/login", json={"token": "wrong"}) as response:
                assert response.status == 401
                assert "set-cookie" not in response.headers
            async with http.post("/login", json={"token": "admin-4567"}) as response:
                assert response.status == 204
                cookie = response.headers["set-cookie"]
            assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
            assert "Secure" not in cookie
            assert "4567" not in cookie
            assert await status(http, "GET", "/") == 200
            assert await status(http, "GET", "/stats") == 200
            policy = {"json": {"policy": "random"}}
            assert await status(http, "POST", "/policy", **policy) == 403
            assert await status(http, "POST", "/policy", **policy, headers={"origin": "http://evil.example"}) == 403
            assert await status(http, "POST", "/policy", **policy, headers={"origin": url}) == 200
            assert await status(http, "POST", "/logout", headers={"origin": url}) == 204
            assert await status(http, "GET", "/stats") == 401
            stale = {"cookie": cookie.partition(";")[0]}
            assert await status(http, "GET", "/stats", headers=stale) == 401

    run(test)


def test_a_form_logs_in_too_and_https_makes_the_cookie_secure() -> None:
    async def test() -> None:
        async with guarded(trusted_proxies=("127.0.0.1",)) as (_, http):
            assert await status(http, "POST", "/login", data={"token": "wrong"}) == 401
            headers = {"x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.5"}
            async with http.post(
                "/login", data={"token": "admin-4567"}, headers=headers, allow_redirects=False
            ) as response:
                assert (response.status, response.headers["location"]) == (303, "/")
                assert "Secure" in response.headers["set-cookie"]
            for body in (b"", b"\xff", b"[]", b"{", b"x" * 5000):
                assert await status(http, "POST", "/login", data=body) in {400, 401, 413}

    run(test)


def test_guesses_are_limited_and_counted() -> None:
    async def test() -> None:
        async with guarded(wrong_tokens_per_minute=3) as (_, http):
            guess = {"authorization": "Bearer guess"}
            answers = [await status(http, "GET", "/stats", headers=guess) for _ in range(4)]
            answers += [await status(http, "POST", "/v1/completions", headers=guess)]
            assert answers == [401, 401, 401, 429, 429]
            async with http.post("/login", json={"token": "admin-4567"}) as response:
                assert response.status == 429
                assert int(response.headers["retry-after"]) > 0

    run(test)


def test_a_rebound_name_gets_nothing_from_an_open_router() -> None:
    async def test() -> None:
        async with fleet(1) as (url, _, _), aiohttp.ClientSession(url) as http:
            evil = {"host": "evil.example"}
            for method, path in (("GET", "/stats"), ("GET", "/"), ("POST", "/v1/completions"), ("GET", "/v1/models")):
                assert await status(http, method, path, headers=evil) == 403
            assert await status(http, "GET", "/health", headers=evil) == 200
            simple = {"origin": "http://evil.example", "content-type": "text/plain"}
            assert await status(http, "POST", "/v1/completions", headers=simple, data=b'{"prompt": [1]}') == 403
            assert await status(http, "POST", "/policy", headers=simple, data=b'{"policy": "random"}') == 403
            assert await status(http, "GET", "/stats") == 200

    run(test)


def test_readiness_tells_names_only_to_whoever_runs_it() -> None:
    async def test() -> None:
        async with guarded() as (_, http):
            async with http.get("/ready") as response:
                assert (response.status, (await response.json())["waiting_for"]) == (503, 1)
            async with http.get("/ready", headers=ADMIN) as response:
                (waited,) = (await response.json())["waiting_for"]
                assert (waited["dp_rank"], waited["state"]) == (0, "connecting")

    run(test)
