"""`make docs` builds the documentation's site, strictly, and it needs nothing from outside."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kvevents.cli import COMMANDS

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, **NO_NETWORK, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class _Assets(HTMLParser):
    """What a page loads by itself: not what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        known: Mapping[str, str | None] = dict(attributes)
        if tag in {"script", "img", "iframe", "source"} and known.get("src"):
            self.found.append(str(known["src"]))
        if tag == "link" and known.get("rel") not in {"canonical", "next", "prev"}:
            self.found.append(str(known["href"]))


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        assets = _Assets()
        assets.feed(page.read_text())
        assert assets.found
        for asset in assets.found:
            assert not re.match(r"(https?:)?//", asset), f"{page.relative_to(site)} loads {asset}"
            if not asset.startswith(("data:", "/")):
                assert (page.parent / asset.partition("?")[0]).exists(), f"{page.relative_to(site)}: {asset}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text()), sheet


def test_the_reference_has_what_stubs_say(site: Path) -> None:
    page = (site / "reference" / "recording.html").read_text()
    for name in ("page_size", "max_event_blocks", "take_batch"):
        assert name in page


def test_every_command_has_its_help(site: Path) -> None:
    page = (site / "commands.html").read_text()
    for name in COMMANDS:
        assert f'<h2 id="{name}"' in page
    assert "--tokenizer" in page


def test_every_page_is_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text()
    for page in site.rglob("*.html"):
        place = str(page.relative_to(site))
        assert place == "404.html" or f'href="{place}"' in home or place == "index.html", (
            f"mkdocs.yml: nav lacks {place}"
        )
