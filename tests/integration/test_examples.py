"""Every example runs, with the commands and engines that it is made for."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine_process import running_engine
from kvevents import cli
from kvevents.events import BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.transport import CaptureWriter, Source, discover
from kvevents.wire import encode_batch
from page_shell import BIN, free_ports

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMPT = list(range(500, 600))

CAPTURED: list[tuple[str, KVCacheEvent]] = [
    ("a", BlockStored([1], None, [7, 8], 2, medium="GPU")),
    ("a", BlockStored([2], 1, [9, 10], 2, medium="GPU")),
    ("b", BlockStored([1, 5], None, [7, 8, 3, 4], 2, medium="GPU")),
    ("a", BlockRemoved([2], medium="GPU")),
    ("a", BlockStored([2], 1, [9, 10], 2, medium="GPU")),
]
"""Worker b computes what a has, and a computes a block again."""


@contextlib.contextmanager
def running(*command: str | Path) -> Iterator[dict[str, Any]]:
    """The line of JSON that an example says first, while it runs."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def own_engine() -> Iterator[str]:
    with running(sys.executable, EXAMPLES / "own_engine.py") as said:
        yield said["url"]


@pytest.mark.parametrize("name", ["own_engine.py", "own_router.py"])
def test_sixty_lines_are_sixty_lines(name: str) -> None:
    assert sum(bool(line.strip()) for line in (EXAMPLES / name).read_text().splitlines()) <= 60


def test_the_tools_work_on_an_own_engine(own_engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", own_engine, "--json"]) == cli.DONE
    hops = {hop["hop"]: hop["verdict"] for hop in json.loads(capsys.readouterr().out)["findings"]}
    assert {hops[name] for name in ("reachable", "sockets", "announced", "hashes", "replay", "cached")} == {"fine"}
    assert cli.main(["tail", own_engine, "--json", "--limit", "2"]) == cli.DONE
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["event"]["type"] for each in records if "event" in each] == ["AllBlocksCleared", "BlockStored"]
    assert cli.main(["lint", own_engine, "--duration", "1", "--json"]) == cli.DONE
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_an_own_router_sends_a_prompt_where_it_is_cached(own_engine: str) -> None:
    with running(sys.executable, EXAMPLES / "own_engine.py") as said:
        httpx.post(f"{said['url']}/v1/completions", json={"prompt": PROMPT}).raise_for_status()
        with running(sys.executable, EXAMPLES / "own_router.py", own_engine, said["url"]) as router:
            answer = httpx.post(f"{router['url']}/v1/completions", json={"prompt": PROMPT})
    assert answer.headers["x-worker"] == said["url"].removeprefix("http://")
    assert answer.headers["x-expected-cached-tokens"] == "96"
    assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 96}


def test_a_sidecar_relay_stands_for_its_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sockets = '{"endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0"}'
    (port,) = free_ports(1)
    with (
        running_engine("--kv-events-config", sockets, "--page-size", "16", "--speed", "100") as engine,
        running(EXAMPLES / "relay" / "sidecar.sh", engine.url, str(port), tmp_path / "log") as said,
    ):
        (source,) = discover(f"http://127.0.0.1:{port}")
        assert said["url"] == f"http://127.0.0.1:{port}"
        assert source.endpoint != discover(engine.url)[0].endpoint
        httpx.post(f"{engine.url}/v1/completions", json={"prompt": PROMPT, "max_tokens": 1}).raise_for_status()
        assert cli.main(["tail", said["url"], "--json", "--kind", "stored", "--limit", "1"]) == cli.DONE
        stored = [each["event"] for each in map(json.loads, capsys.readouterr().out.splitlines()) if "event" in each]
        assert [len(event["block_hashes"]) for event in stored] == [6]
        assert (tmp_path / "log").is_dir()


def test_a_capture_is_analysed_headless(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path / "captures") as writer:
        for number, (worker, event) in enumerate(CAPTURED):
            source = Source(worker, "tcp://127.0.0.1:5557", dp_rank=0, block_size=2)
            writer.write_batch(source, encode_batch(KVEventBatch(float(number), [event], 0)), sequence=number)
    report = tmp_path / "report.html"
    done = subprocess.run(
        [sys.executable, EXAMPLES / "analyse_capture.py", tmp_path / "captures", report],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "5 batches, 5 blocks stored, 1 removed again" in done.stdout
    assert "1 of them were computed although another worker held them: 20.0%" in done.stdout
    html = report.read_text()
    assert "Sharing by depth" in html
    assert 'src="http' not in html
