"""`kvevents top` before real engines and a real router, its screen driven by Textual's pilot."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Iterator

import httpx
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, RichLog, Static

from engine_process import EngineProcess, running_engine, wait_until
from kvevents import cli
from kvevents.cli.top import _lines
from kvevents.top import EngineFeed, Feed, RouterFeed
from kvevents.top.view import COLUMNS, TopApp
from kvevents.transport import discover
from router_process import running_router

pytestmark = pytest.mark.integration

SOCKETS = '{"endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0"}'
OPTIONS = ("--kv-events-config", SOCKETS, "--page-size", "16", "--speed", "100")


@pytest.fixture(scope="module")
def engines() -> Iterator[list[EngineProcess]]:
    with running_engine(*OPTIONS) as first, running_engine(*OPTIONS) as second:
        yield sorted([first, second], key=lambda engine: engine.url)


def send(engine: EngineProcess, first: int, tokens: int) -> None:
    body = {"prompt": list(range(first, first + tokens)), "max_tokens": 1}
    httpx.post(f"{engine.url}/v1/completions", json=body, timeout=20).raise_for_status()


async def until(pilot: Pilot[None], met: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not met():
            await pilot.pause(0.02)


def column(app: TopApp, name: str) -> list[str]:
    table = app.query_one("#rows", DataTable)
    return [str(table.get_row_at(place)[COLUMNS.index(name)]) for place in range(table.row_count)]


def news(app: TopApp) -> str:
    return "\n".join(line.text for line in app.query_one("#news", RichLog).lines)


def watched(feed: Feed, look: Callable[[TopApp, Pilot[None]], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        app = TopApp(feed, interval_s=0.05)
        async with app.run_test(size=(160, 40)) as pilot:
            await look(app, pilot)

    with contextlib.closing(feed):
        asyncio.run(run())


def test_engines_are_shown_sorted_filtered_and_held(engines: list[EngineProcess]) -> None:
    first, second = engines
    names = [engine.url.removeprefix("http://") for engine in engines]

    async def look(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: column(app, "state") == ["live", "live"])
        assert column(app, "worker") == names
        send(first, 0, 64)
        send(second, 0, 160)
        await until(pilot, lambda: column(app, "GPU") == ["4", "10"])
        await until(pilot, lambda: "stored GPU 10 blocks" in news(app))
        assert column(app, "gaps") == column(app, "missing") == ["0", "0"]
        assert f"{names[0]}/0 is live" in news(app)
        assert "2 of 2 live" in str(app.query_one("#summary", Static).render())

        for _ in range(COLUMNS.index("GPU")):
            await pilot.press("s")
        await pilot.press("r")
        assert column(app, "worker") == names[::-1]

        await pilot.press("f", *names[0].rpartition(":")[2], "enter")
        assert column(app, "worker") == [names[0]]
        assert not app.query_one("#filter", Input).has_class("is-open")
        app.query_one("#filter", Input).value = ""
        await until(pilot, lambda: len(column(app, "worker")) == 2)

        await pilot.press("p")
        send(first, 5000, 32)
        await pilot.pause(0.3)
        assert sorted(column(app, "GPU")) == ["10", "4"]
        await pilot.press("p")
        await until(pilot, lambda: sorted(column(app, "GPU")) == ["10", "6"])

        await pilot.press("h")
        assert app.screen.query_one("#help", Static)
        await pilot.press("x")
        await pilot.press("q")
        assert app.return_code == 0

    watched(EngineFeed([source for engine in engines for source in discover(engine.url)], _lines), look)


def test_a_router_is_shown_and_when_it_goes_that_is_said(engines: list[EngineProcess]) -> None:
    workers = [word for engine in engines for word in ("--worker", engine.url)]
    with contextlib.ExitStack() as running:
        url = running.enter_context(running_router(*workers))

        async def look(app: TopApp, pilot: Pilot[None]) -> None:
            await until(pilot, lambda: column(app, "state") == ["live", "live"])
            send(engines[0], 9000, 320)
            held = sum(len(blocks) for blocks in engines[0].holdings()[0].values())
            await until(pilot, lambda: column(app, "GPU")[0] == str(held))
            await asyncio.to_thread(running.close)
            await until(pilot, lambda: app.problem)
            assert len(column(app, "worker")) == 2

        watched(RouterFeed(url), look)


def test_json_is_a_line_for_each_look(engines: list[EngineProcess], capsys: pytest.CaptureFixture[str]) -> None:
    for _ in wait_until():
        assert cli.main(["top", engines[0].url, "--json", "--count", "3", "--every", "0.2"]) == cli.DONE
        looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(looks) == 3
        (row,) = looks[-1]["workers"]
        if row["state"] == "live":
            assert row["tiers"]["GPU"] == sum(len(blocks) for blocks in engines[0].holdings()[0].values())
            return
