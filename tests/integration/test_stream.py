"""`GET /stream` and `GET /stats` of a router in this process."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from kvevents.server.dashboard import DashboardSettings
from kvevents.transport.state import State
from serving import fleet, get, post, run, until

pytestmark = pytest.mark.integration

PROMPT = {"prompt": list(range(256)), "max_tokens": 1}
QUICK = DashboardSettings(tick_s=0.02)


@dataclass
class Event:
    """A server-sent event."""

    id: str
    event: str
    data: Any


class Page:
    """What a page knows from the stream alone."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.stats: Any = None

    async def next(self) -> Event:
        fields: dict[str, str] = {}
        while True:
            line = (await self._response.content.readline()).decode()
            if line == "\n" and "event" in fields:
                break
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value
        event = Event(fields["id"], fields["event"], json.loads(fields["data"]))
        if event.event == "snapshot":
            self.stats = event.data["stats"]
        for path, value in event.data["changes"] if event.event == "change" else ():
            *above, last = path
            part = self.stats
            for key in above:
                part = part[key]
            part[last] = value
        return event

    async def until(self, kind: str) -> Event:
        while True:
            event = await self.next()
            if event.event == kind:
                return event


@contextlib.asynccontextmanager
async def stream(url: str, *, last_id: str | None = None) -> AsyncIterator[Page]:
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    async with aiohttp.ClientSession(url, read_bufsize=2**22) as http, http.get("/stream", headers=headers) as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Page(response)


def test_the_stream_begins_with_all_and_goes_on_with_what_changes() -> None:
    async def test() -> None:
        async with fleet(2, dashboard=QUICK) as (url, _engines, sources), stream(url) as page:
            first = await page.next()
            assert first.event == "snapshot"
            assert first.data["stats"].keys() == (await get(url, "/stats")).keys()
            await post(url, "/v1/completions", PROMPT)
            shown = (await page.until("decisions")).data
            while shown["shown"][-1]["outcome"] is None:
                shown = (await page.until("decisions")).data
            (decision,) = shown["shown"]
            assert (decision["outcome"], decision["reported_cached_tokens"]) == ("ok", 128)
            assert len(decision["explanation"]["candidates"]) == 2
            sources[0].say(State.LIVE)
            while page.stats["workers"][0]["state"] != "live":
                await page.until("change")
            now = await get(url, "/stats")
            while page.stats["now"] < now["now"]:
                await page.until("change")
            told = {name: page.stats[name] for name in ("requests", "totals", "outcomes", "index", "workers")}
            assert told == {name: now[name] for name in told}

    run(test)


def test_who_comes_back_is_told_what_was_missed_and_a_stranger_everything() -> None:
    async def test() -> None:
        async with fleet(1, dashboard=QUICK) as (url, _engines, _sources), stream(url) as other:
            async with stream(url) as page:
                await page.until("snapshot")
                last = (await page.next()).id
            await other.until("change")
            async with stream(url, last_id=last) as page:
                event = await page.next()
                assert event.event != "snapshot"
                assert int(event.id.partition("-")[2]) == int(last.partition("-")[2]) + 1
            for stranger in ("gone-1", last.partition("-")[0] + "-999999", "nonsense", ""):
                async with stream(url, last_id=stranger) as page:
                    assert (await page.next()).event == "snapshot"
            counters = (await get(url, "/stats"))["stream"]
            assert (counters["connected"], counters["resumed"]) == (7, 1)

    run(test)


def test_one_reader_too_many_is_turned_away() -> None:
    async def test() -> None:
        settings = DashboardSettings(tick_s=0.02, stream_clients=1)
        async with fleet(1, dashboard=settings) as (url, _engines, _sources):
            async with stream(url) as page, aiohttp.ClientSession(url) as http:
                await page.next()
                async with http.get("/stream") as refused:
                    assert refused.status == 503
                    assert (await refused.json())["error"]["code"] == "stream_unavailable"

            async def is_free() -> bool:
                return not (await get(url, "/stats"))["stream"]["readers"]

            await until(is_free)
            async with stream(url) as page:
                assert (await page.next()).event == "snapshot"

    run(test)


def test_history_adds_up_to_the_totals() -> None:
    async def test() -> None:
        async with fleet(1, dashboard=QUICK) as (url, _engines, _sources):
            for _ in range(3):
                await post(url, "/v1/completions", PROMPT)
            totals = (await get(url, "/stats"))["totals"]

            sums: dict[str, int] = {}

            async def is_over() -> bool:
                history = (await get(url, "/stats?history=1"))["history"]
                columns = zip(history["columns"], zip(*history["fine"]["rows"], strict=True), strict=False)
                sums.update({name: sum(column) for name, column in columns if name in totals})
                return sums.get("requests", 0) == 3

            await until(is_over)
            assert sums == {name: totals[name] for name in sums}
            assert totals["reported_hit_rate"] == 0.5

    run(test)
