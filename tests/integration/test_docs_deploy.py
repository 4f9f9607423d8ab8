"""The commands of docs/deploy.md, run from the first to the hit, with a simulated engine."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from deploy_page import blocks, command
from page_shell import Shell, wait_until_live

pytestmark = pytest.mark.integration


def figures(said: str) -> dict[str, int]:
    lines = (line.partition(":") for line in said.lower().splitlines())
    return {name.strip(): int(value) for name, _, value in lines}


def test_from_zero_to_the_first_hit(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with (
        shell.running(command("engine: simulated")),
        shell.running(command("router: engines that name their sockets")) as router,
    ):
        wait_until_live(router["url"])
        first, _, second = shell.run(
            command("check: the same prompt twice").replace("sleep 1", "sleep 1; echo ---")
        ).partition("---\n")
        assert set(figures(first).values()) == {0}
        assert figures(second) == {
            "x-kvevents-expected-cached-tokens": 448,
            "x-kvevents-reported-cached-tokens": 448,
        }
        said = shell.run(command("check: what the router thinks"))
        assert '"status":"ready"' in said
        assert 'state="live"} 1' in said


def test_an_engine_whose_sockets_are_given_works_from_the_file(tmp_path: Path) -> None:
    """The vLLM of the page's file is the simulated engine of that kind."""
    shell = Shell(tmp_path)
    (text,) = [block for block in blocks("toml") if "[[worker]]" in block]
    worker = shell.filled(text.partition("[[prompts.tokenizer]]")[0])
    (tmp_path / "serve.toml").write_text(f"{worker}\n[listen]\nport = {shell.ports['8080']}\n")
    engine = command("engine: simulated").replace("30000", "8000") + " --cache block_pool --page-size 16"
    engine = engine.replace("\n --cache", " --cache")
    assert shell.run(command("check: the settings"))
    with shell.running(engine), shell.running(command("router: from a file")) as router:
        wait_until_live(router["url"])
        said = shell.run(command("check: the same prompt twice"))
        assert "x-kvevents-expected-cached-tokens: 496" in said


def test_with_tokens_only_who_has_one_gets_in(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    block = command("tokens").replace("--worker http://127.0.0.1:30000", "")
    with shell.running(block) as router:
        assert {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {
            "client-token": "0o600",
            "admin-token": "0o600",
        }
        for path, status in (("/health", 200), ("/metrics", 401), ("/v1/models", 401)):
            try:
                with urllib.request.urlopen(router["url"] + path) as answer:
                    got = answer.status
            except urllib.error.HTTPError as error:
                got = error.code
                error.close()
            assert got == status, path
        token = (tmp_path / "admin-token").read_text().strip()
        request = urllib.request.Request(f"{router['url']}/metrics", headers={"authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request) as answer:
            assert b"kvevents_build_info" in answer.read()
