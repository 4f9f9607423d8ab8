"""Debian's chromium without a window, and pages that are watched for what must not happen on them."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

LAPTOP = {"width": 1280, "height": 860}
PHONE = {"width": 375, "height": 812}


def require_chromium() -> str:
    """Where chromium is; without it the test is skipped, but in CI it fails."""
    found = shutil.which("chromium")
    if found is not None:
        return found
    reason = "chromium is not installed: `make system-packages` as root, or `apt-get install chromium`"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser with a profile of its own."""
    path = require_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A page and what went wrong on it.

    Attributes:
        page: the page.
        errors: messages on its console that are errors or warnings, and exceptions.
        foreign: addresses elsewhere that it asked for.
    """

    page: Page
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def is_clean(self) -> bool:
        """Whether nothing went wrong."""
        return not self.errors and not self.foreign


@contextlib.contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Watched]:
    """The page at an address, in a context of its own; options are those of Playwright's contexts."""
    options.setdefault("viewport", LAPTOP)
    context = browser.new_context(**options)
    try:
        page = context.new_page()
        page.set_default_timeout(10_000)
        watched = Watched(page)
        page.on("console", lambda one: watched.errors.append(one.text) if one.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        host = urlsplit(url).netloc
        page.on(
            "request",
            lambda one: (
                watched.foreign.append(one.url)
                if urlsplit(one.url).netloc != host and not one.url.startswith("data:")
                else None
            ),
        )
        page.goto(url)
        yield watched
    finally:
        context.close()
