"""The pods of deploy/kubernetes as processes: engines, the relays beside them, and the router that reads these."""

import json
import shlex
import urllib.request
from pathlib import Path

import pytest

from deployments import KUBERNETES, containers
from page_shell import Shell, wait_until_live

pytestmark = pytest.mark.integration

PROMPT = list(range(1000, 1512))
SGLANG = ("30000", "5557", "5558", "5657", "5757", "5080", "8080")
VLLM = ("8000", "5557", "5558", "5657", "5757", "5080", "8080")
EVENTS = '{"endpoint": "tcp://127.0.0.1:5557", "replay_endpoint": "tcp://127.0.0.1:5558"}'


def relay_of(engine: str, log: Path) -> str:
    """The relay's command in an engine's pod."""
    (arguments,) = [
        container["args"]
        for pod, container in containers()
        if container["name"] == "relay" and pod["containers"][0]["name"] == engine
    ]
    return "kvevents " + shlex.join(arguments).replace("/var/lib/kvevents", str(log))


def worker_of(engine: str, shell: Shell) -> str:
    """The first pod of an engine in the router's file, on this machine."""
    text = (KUBERNETES / "router" / "serve.toml").read_text()
    (table,) = [table for table in text.split("[[worker]]") if f'id = "{engine}-0"' in table]
    return "[[worker]]" + shell.filled(table.replace(f"{engine}-0.{engine}", "127.0.0.1"))


def ask(url: str, *, worker: str) -> tuple[int, int]:
    """Expected and reported cached tokens of a prompt; it is sent again until this worker has had it twice."""
    body = json.dumps({"prompt": PROMPT, "max_tokens": 1}).encode()
    while True:
        request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            heads = answer.headers
            answer.read()
        expected = int(heads["x-kvevents-expected-cached-tokens"])
        if heads["x-kvevents-worker"] == worker and expected:
            return expected, int(heads["x-kvevents-reported-cached-tokens"])


@pytest.mark.parametrize(
    ("engine", "kind", "pages", "ports"),
    [("sglang", "radix", 64, SGLANG), ("vllm", "block_pool", 16, VLLM)],
    ids=["sglang", "vllm"],
)
def test_news_comes_through_the_relay_of_the_pod(
    engine: str, kind: str, pages: int, ports: tuple[str, ...], tmp_path: Path
) -> None:
    shell = Shell(tmp_path, ports)
    command = f"kvevents engine --port {ports[0]} --cache {kind} --page-size {pages} --kv-events-config '{EVENTS}'"
    (tmp_path / "serve.toml").write_text(f"[listen]\nport = {shell.ports['8080']}\n{worker_of(engine, shell)}")
    with (
        shell.running(command),
        shell.running(relay_of(engine, tmp_path / "log")),
        shell.running("kvevents serve --config serve.toml") as router,
    ):
        wait_until_live(router["url"])
        whole = (len(PROMPT) - 1) // pages * pages
        assert ask(router["url"], worker=f"{engine}-0") == (whole, whole)
