"""The page in a real browser, before real engines: what it shows is what `/stats` says, and it says when it is not."""

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from browser import LAPTOP, PHONE, Watched, opened, running_browser
from engine_process import EngineProcess, running_engine, wait_until
from nats_server import free_port
from router_fleet import ENGINE_OPTIONS, PAGE_SIZE, RouterProcess, running_engines, running_router

pytestmark = pytest.mark.integration

PICTURES = Path(__file__).parents[2] / "build" / "screenshots"
SHARED = 6 * PAGE_SIZE
INLINE = """() => {
    const script = document.createElement('script');
    script.textContent = 'window.inlined = 1';
    document.head.append(script);
    const style = document.createElement('style');
    style.textContent = 'body { --inlined: 1 }';
    document.head.append(style);
    return [window.inlined ?? null, getComputedStyle(document.body).getPropertyValue('--inlined') || null];
}"""


def prompt(family: int, branch: int, pages: int = 4) -> list[int]:
    """Token ids: a beginning that a family shares, and an end of its own."""
    start = [1_000_000 * family + position for position in range(SHARED)]
    return start + [1_000_000 * family + 10_000 * (branch + 1) + position for position in range(pages * PAGE_SIZE + 1)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def router() -> Iterator[RouterProcess]:
    """A router before two engines that hold two families of prompts."""
    with running_engines(2) as engines, running_router(engines) as router:
        for _ in range(2):
            for family, branches in ((1, 4), (2, 2)):
                for branch in range(branches):
                    router.complete(prompt(family, branch))
        yield router


@contextlib.contextmanager
def shown(browser: Browser, router: RouterProcess, **options: Any) -> Iterator[Watched]:
    """The page, once it shows figures."""
    with opened(browser, router.url + "/", **options) as watched:
        expect(watched.page.locator("#connection")).to_have_text("live")
        yield watched


def picture(page: Page | Locator, name: str, **options: Any) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", **options)


def drawn(page: Page) -> None:
    """Wait until every chart and the tree of prefixes are there."""
    expect(page.locator(".chart .main-svg").first).to_be_visible()
    expect(page.locator("#timeline .lane").first).to_be_visible()
    expect(page.locator(".stretch").first).to_be_visible()


def looked_up(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document.get(key)
    return document


def test_every_figure_is_that_of_stats_and_changes_with_it(browser: Browser, router: RouterProcess) -> None:
    with shown(browser, router) as watched:
        page = watched.page
        drawn(page)
        before = router.get("/stats")["totals"]["requests"]
        router.complete(prompt(1, 0))
        answered = page.locator('[data-figure="totals.requests"]')
        expect(answered).to_have_attribute("data-value", str(before + 1))
        expect(page.locator(".decision").first).to_contain_text("answered in")
        for _ in wait_until():  # figures of the last minute move on by themselves
            stats = router.get("/stats")
            figures = page.evaluate(
                "[...document.querySelectorAll('[data-figure]')].map((one) => [one.dataset.figure, one.dataset.value])"
            )
            assert len(figures) >= 15
            wrong = {path: value for path, value in figures if json.loads(value) != looked_up(stats, path)}
            if not wrong:
                break
        for worker in stats["workers"]:
            row = page.locator(f'[data-worker="{worker["id"]}"]')
            expect(row.locator(".state")).to_have_text(re.compile(r"live"))
            expect(row.locator('[data-cell="blocks"]')).to_have_text(f"{sum(worker['blocks'].values())} blocks")
            expect(row.locator('[data-cell="requests"]')).to_have_text("0")
        expect(page.locator("#decisions-note")).to_contain_text(f"{stats['decisions_taken']} taken")
        assert page.locator("#timeline .lane").count() == 2
        picture(page, "laptop", full_page=True)
        assert watched.is_clean(), watched
        assert page.evaluate(INLINE) == [None, None], "what stands in the page itself must have no effect"


def test_a_decision_explains_itself(browser: Browser, router: RouterProcess) -> None:
    with shown(browser, router) as watched:
        page = watched.page
        decision = page.locator(".decision").first
        decision.locator("summary").click()
        rows = decision.locator(".candidates tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.first).to_have_attribute("data-chosen", "true")
        costs = [float(text.replace(",", "")) for text in decision.locator(".cost").all_inner_texts()]
        assert costs == sorted(costs)
        page.locator("#decisions-pause").click()
        shown_now = page.locator(".decision").count()
        router.complete(prompt(2, 0))
        expect(page.locator("#decisions-note")).to_contain_text(f"{router.get('/stats')['decisions_taken']} taken")
        assert page.locator(".decision").count() == shown_now
        picture(page.locator("#decisions"), "decision")
        assert watched.is_clean(), watched


def test_the_tree_of_prefixes_is_looked_into_to_any_depth(browser: Browser, router: RouterProcess) -> None:
    with shown(browser, router) as watched:
        page = watched.page
        drawn(page)
        answer = router.get("/prefixes")
        tops = [one for one in answer["stretches"] if one["parent"] is None]
        assert len(tops) == 2
        hottest = tops[0]
        assert (hottest["blocks"], hottest["children"]) == (SHARED // PAGE_SIZE, 4)
        node = page.locator(f'.stretch[data-id="{hottest["id"]}"]')
        node.hover()
        about = page.locator(".about")
        expect(about).to_contain_text(f"{hottest['blocks']} blocks of {PAGE_SIZE} tokens")
        for holder in hottest["holders"]:
            expect(about).to_contain_text(holder["worker"])
        node.click()
        expect(page.locator(".crumbs [aria-current]")).to_have_text(hottest["id"][:6])
        below = router.get(f"/prefixes?at={hottest['id']}")["stretches"]
        expect(page.locator(".stretch")).to_have_count(len(below))
        assert {one["id"] for one in below} == set(
            page.locator(".stretch").evaluate_all("nodes => nodes.map((node) => node.dataset.id)")
        )
        leaf = below[-1]
        page.locator(f'.stretch[data-id="{leaf["id"]}"]').click()
        expect(page.locator(".crumbs li")).to_have_count(3)
        expect(page.locator(".stretch")).to_have_count(1)
        page.keyboard.press("Backspace")
        expect(page.locator(".crumbs li")).to_have_count(2)
        page.get_by_role("button", name="All prompts").click()
        expect(page.locator(".stretch")).to_have_count(len(answer["stretches"]))
        page.get_by_role("button", name="by blocks").click()
        picture(page.locator("#prefixes"), "prefixes")
        assert watched.is_clean(), watched


def test_all_of_it_works_by_keyboard(browser: Browser, router: RouterProcess) -> None:
    with shown(browser, router) as watched:
        page = watched.page
        drawn(page)
        seen: list[str] = []
        for _ in range(60):
            page.keyboard.press("Tab")
            focus = page.evaluate(
                """() => {
                    const one = document.activeElement;
                    const style = getComputedStyle(one);
                    const name = one.id || one.className || one.tagName;
                    return [name, one.innerText, style.outlineStyle, one.checkVisibility()];
                }"""
            )
            if focus[0] == "BODY":
                break
            assert focus[2] != "none", f"no focus is seen on {focus}"
            assert focus[3], f"what is not seen takes the focus: {focus}"
            seen.append(f"{focus[0]} {focus[1]}")
            if focus[0] == "stretch":
                chosen = page.locator(".about").get_attribute("data-id")
                page.keyboard.press("ArrowDown")
                expect(page.locator(".about")).not_to_have_attribute("data-id", chosen or "")
                page.keyboard.press("ArrowUp")
                page.keyboard.press("Enter")
                expect(page.locator(".crumbs li")).to_have_count(2)
                page.keyboard.press("Backspace")
                expect(page.locator(".crumbs li")).to_have_count(1)
            if focus[0] == "SUMMARY":
                page.keyboard.press("Enter")
                expect(page.locator(".decision[open]")).to_have_count(1)
                page.keyboard.press("Enter")
                break
        order = " | ".join(seen)
        expected = ("skip", "Fleet", "Hits", "Timeline", "theme", "Details", "10 min", "6 h", "by requests", "stretch")
        assert re.search(".*".join([*expected, "Pause", "SUMMARY"]), order, re.DOTALL), order
        page.locator("#theme").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        assert watched.is_clean(), watched


@pytest.mark.parametrize(
    ("name", "viewport", "scheme"),
    [("dark", LAPTOP, "dark"), ("phone", PHONE, "light")],
)
def test_it_fits_the_screen_and_the_eyes(
    browser: Browser, router: RouterProcess, name: str, viewport: dict[str, int], scheme: str
) -> None:
    options = {"viewport": viewport, "color_scheme": scheme, "reduced_motion": "reduce"}
    with shown(browser, router, **options) as watched:
        page = watched.page
        drawn(page)
        width, visible = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width <= visible == viewport["width"]
        light = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (sum(light) / 3 < 60) == (scheme == "dark")
        assert page.evaluate("getComputedStyle(document.querySelector('.stretch')).transitionDuration") == "0s"
        picture(page, name, full_page=True)
        assert watched.is_clean(), watched


def test_a_killed_engine_is_shown_and_so_is_its_return(browser: Browser) -> None:
    port = free_port()
    with running_engines(1) as others, contextlib.ExitStack() as stack:
        killed = stack.enter_context(running_engine(*ENGINE_OPTIONS, port=port))
        with (
            running_router([*others, killed], "--set", "fleet.probe_interval_s=0.2") as router,
            shown(browser, router) as watched,
        ):
            page = watched.page
            row = page.locator(f'[data-worker="127.0.0.1:{port}"]')
            expect(row.locator(".state")).to_have_text("● live")
            killed.process.kill()
            expect(row.locator(".state")).to_have_text("■ down")
            expect(page.locator("#timeline .log")).to_contain_text("takes no requests")
            expect(page.locator("#timeline .log")).to_contain_text("→ lost")
            expect(page.locator("#fleet-note")).to_have_text("1 of 2 workers live")
            picture(page.locator("#fleet"), "killed")
            back = stack.enter_context(running_engine(*ENGINE_OPTIONS, port=port))
            expect(row.locator(".state")).to_have_text("● live")
            expect(page.locator("#timeline .log")).to_contain_text("takes requests again")
            assert isinstance(back, EngineProcess)
            picture(page.locator("#timeline"), "timeline")
            assert watched.is_clean(), watched


def test_a_router_that_is_gone_is_said_to_be_and_its_return_is_seen(browser: Browser) -> None:
    port = free_port()
    with running_router([], port=port) as router, shown(browser, router) as watched:
        page = watched.page
        for text in ("No worker is known yet", "No request was placed yet", "No engine holds a block yet"):
            expect(page.get_by_text(text)).to_be_visible()
        expect(page.get_by_text("No engine's events are received yet")).to_be_visible()
        picture(page, "empty", full_page=True)
        assert watched.is_clean(), watched
        assert router.stop(signal.SIGTERM) == 0, "a reader of the stream must not hold up the end"
        expect(page.locator("#connection")).to_have_text("disconnected", timeout=20_000)
        expect(page.get_by_role("alert")).to_contain_text("The router cannot be reached")
        picture(page, "disconnected")
        with running_router([], port=port):
            expect(page.locator("#connection")).to_have_text("live", timeout=20_000)
            expect(page.get_by_role("alert")).to_be_hidden()
        assert all("ERR_" in error or "Failed to load" in error for error in watched.errors), watched
        assert not watched.foreign


def test_whoever_knows_the_token_is_let_in_and_can_leave(browser: Browser) -> None:
    with running_router([], admin_token="open-sesame") as router, opened(browser, router.url + "/") as watched:
        page = watched.page
        token = page.get_by_label("Admin token")
        expect(token).to_be_focused()
        token.fill("open barley")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("Not let in")
        picture(page, "login")
        token.fill("open-sesame")
        page.keyboard.press("Enter")
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.get_by_text("No worker is known yet")).to_be_visible()
        assert "sesame" not in page.content() + json.dumps(page.context.storage_state()["origins"])
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Admin token")).to_be_visible()
        assert page.request.get(router.url + "/stats").status == 401
        assert all("401" in error for error in watched.errors), watched
        assert not watched.foreign
