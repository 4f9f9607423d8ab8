"""The files of the page: what a browser may do with them, and what there is without the extra."""

import asyncio
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from kvevents.server.dashboard import page
from kvevents.server.errors import HttpError, respond

STATIC = Path(str(files("kvevents.server.dashboard") / "static"))
SCRIPTS = sorted(STATIC.rglob("*.js"))


def get(path: str, **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        app = Starlette(routes=page.ROUTES, exception_handlers={HttpError: respond})
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as client:
            return await client.get(path, headers={"accept-encoding": "identity", **headers})

    return asyncio.run(ask())


@pytest.fixture
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(page, "_plotly_path", lambda: None)
    page._read.cache_clear()
    yield
    page._read.cache_clear()


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    for name in ("index.html", "login.html"):
        text = (STATIC / name).read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)
    for file in STATIC.rglob("*.*"):
        assert set(re.findall(r"https?://[\w./-]+", file.read_text())) <= {
            "http://www.w3.org/2000/svg",
            "http://host",
            "http://host:30000",
        }
    policy = get("/").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(STATIC)))
def test_a_script_imports_what_there_is_and_makes_no_markup_of_text(script: Path) -> None:
    text = script.read_text()
    for found in re.findall(r'from "([^"]+)"', text):
        assert (script.parent / found).is_file()
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)


def test_a_file_is_sent_packed_and_only_once() -> None:
    plain = get("/dashboard/plotly.min.js")
    assert plain.headers["content-type"].startswith("text/javascript")
    packed = get("/dashboard/plotly.min.js", **{"accept-encoding": "gzip"})
    assert packed.content == plain.content
    assert int(packed.headers["content-length"]) < len(plain.content) / 2
    again = get("/dashboard/plotly.min.js", **{"if-none-match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert get("/dashboard/main.js").headers["etag"] != plain.headers["etag"]


@pytest.mark.parametrize("name", ["nothing.js", "../page.py", "%2e%2e/page.py", "panels/", ""])
def test_only_files_of_the_page_are_served(name: str) -> None:
    assert get(f"/dashboard/{name}").status_code == 404


@pytest.mark.usefixtures("without_plotly")
def test_without_the_extra_the_page_says_what_to_install() -> None:
    answer = get("/")
    assert answer.status_code == 200
    assert "pip install 'kvevents[dashboard]'" in answer.text
    assert "<script" not in answer.text
    assert get("/dashboard/plotly.min.js").status_code == 404
