"""The tutorial from its first command to its last, and the Python of all pages that needs an engine or a broker."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from doc_blocks import BROKER, LIVE, Block, blocks, close, run_python
from engine_process import EngineProcess, running_engine
from nats_server import NatsServer, wait_until
from page_shell import Shell, wait_until_live

pytestmark = pytest.mark.integration

SOCKETS = '{"endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0"}'
TUTORIAL = {
    block.text.partition("\n")[0].removeprefix("# "): block.text
    for block in blocks("bash")
    if block.page == "docs/tutorial.md"
}
PORTS = ("30000", "5557", "5558", "30001", "5567", "5568", "8080")
WITH_ENGINE = [
    (page, list(group))
    for page, group in itertools.groupby(
        (block for block in blocks("python") if LIVE in block.text), lambda block: block.page
    )
]


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    """An engine that has the tutorial's prompt cached."""
    with running_engine("--kv-events-config", SOCKETS, "--speed", "100") as engine:
        body = {"prompt": list(range(1000, 1200)), "max_tokens": 1}
        httpx.post(f"{engine.url}/v1/completions", json=body, timeout=20).raise_for_status()
        yield engine


@pytest.mark.parametrize(("page", "of_page"), WITH_ENGINE, ids=[page for page, _ in WITH_ENGINE])
def test_python_runs_beside_an_engine(page: str, of_page: list[Block], engine: EngineProcess) -> None:
    names: dict[str, Any] = {}
    for block in of_page:
        run_python(block, names, block.text.replace(LIVE, engine.url.removeprefix("http://")))
    close(names)


def test_python_runs_beside_a_broker(tmp_path: Path) -> None:
    of_pages = [block for block in blocks("python") if BROKER in block.text]
    assert {block.page for block in of_pages} == {"docs/jetstream.md"}
    with NatsServer(tmp_path) as broker:
        names: dict[str, Any] = {}
        try:
            for block in of_pages:
                run_python(block, names, block.text.replace(BROKER, broker.url))
            wait_until(lambda: len(names["index"].match(list(range(64)))) == 1, "the batch does not come")
        finally:
            close(names)


def test_the_tutorial_ends_at_a_hit(tmp_path: Path) -> None:
    assert [title for title in TUTORIAL if title in {"install", "engine", "tail"}] == list(TUTORIAL)[:3]
    shell = Shell(tmp_path, PORTS)
    worker = f"127.0.0.1:{shell.ports['30000']}"
    with shell.running(TUTORIAL["engine"]), shell.running(TUTORIAL["second engine"]):
        assert json.loads(shell.run(TUTORIAL["prompt"]))["usage"]["prompt_tokens"] == 200
        said = shell.run(TUTORIAL["tail"].strip() + " --limit 2")
        assert re.search(r"/0 #0 cleared\n", said)
        assert re.search(r"/0 #1 stored GPU 3 blocks \w{8}\.\.\w{8}, no parent, 192 tokens \[1000, 1001", said)
        with shell.running(TUTORIAL["router"]) as router:
            wait_until_live(router["url"])
            heads = shell.run(TUTORIAL["routed"]).lower()
            assert f"x-kvevents-worker: {worker}\n" in heads
            assert "x-kvevents-expected-cached-tokens: 192\n" in heads
            assert json.loads(shell.run(TUTORIAL["why"]))["worker"] == worker
            assert "no cause found" in shell.run(TUTORIAL["doctor"])


def test_the_examples_of_a_relay_start(tmp_path: Path) -> None:
    """The commands of docs/consumers.md for Dynamo, with a log that can be written."""
    (block,) = [block.text for block in blocks("bash") if block.text.startswith("kvevents relay http")]
    shell = Shell(tmp_path, ("30000", "5557", "5558", "6557", "6558"))
    engine = TUTORIAL["engine"]
    with shell.running(engine), shell.running(block.replace("/var/lib/kvevents/relay", "log")) as said:
        events = said["workers"][0]["kv_events"]
        assert events["endpoint_port_base"] == shell.ports["6557"]
        assert events["replay_endpoint_port_base"] == shell.ports["6558"]
