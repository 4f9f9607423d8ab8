"""A network that is cut between machines: connections stay open at both ends, and nothing comes through."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.process import Process
from kvevents.transport import DeliverySettings
from zmq_peers import until

pytestmark = pytest.mark.integration

ENGINE, ROUTER = "10.77.0.1", "10.77.0.2"
PAGE = 16
MEASURING_S = 1.5
"""What a look may be late itself: each takes a new process in the namespace."""

ASK = """
import sys, urllib.request
url, body = sys.argv[1], sys.argv[2]
request = urllib.request.Request(url, body.encode() or None, {"content-type": "application/json"})
sys.stdout.write(urllib.request.urlopen(request, timeout=5).read().decode())
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    """Names of two network namespaces with a cable between them: the engine's and the router's."""
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip (Debian: iproute2)")
    names = f"kv-engine-{os.getpid()}", f"kv-router-{os.getpid()}"
    try:
        ip("netns", "add", names[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine allows no network namespaces: {error.stderr.decode().strip()}")
    try:
        ip("netns", "add", names[1])
        ip("-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names[1])
        for name, address in zip(names, (ENGINE, ROUTER), strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "delete", name)


def ask(machine: str, url: str, body: object = None) -> Any:
    """What a server says to somebody on a machine."""
    text = "" if body is None else json.dumps(body)
    command = ["ip", "netns", "exec", machine, sys.executable, "-c", ASK, url, text]
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=30).stdout)


def test_a_partition_is_noticed_within_the_bound_and_mended_when_it_ends(
    machines: tuple[str, str], tmp_path: Path
) -> None:
    there, here = machines
    config = {"endpoint": f"tcp://{ENGINE}:5557", "replay_endpoint": f"tcp://{ENGINE}:5657"}
    options = ("--page-size", str(PAGE), "--speed", "50", "--kv-events-config", json.dumps(config))
    engine = Process(
        "engine", "engine", "--host", ENGINE, "--port", "30000", *options, log=tmp_path / "engine.log", machine=there
    )
    router = Process(
        "router",
        *("serve", "--port", "8080", "--worker", f"http://{ENGINE}:30000"),
        log=tmp_path / "router.log",
        machine=here,
    )
    worker, base = f"{ENGINE}:30000", "http://127.0.0.1:8080"

    def work(machine: str, url: str, number: int) -> None:
        prompt = [1_000 * number + position for position in range(10 * PAGE)]
        ask(machine, f"{url}/v1/completions", {"model": "kvevents-sim", "prompt": prompt, "max_tokens": 1})

    def state() -> str:
        (known,) = ask(here, f"{base}/workers")["workers"]
        return str(known["sources"][0]["state"]) if known["sources"] else "none"

    def is_right() -> bool:
        truth = ask(there, f"http://{ENGINE}:30000/holdings")["ranks"][0]["tiers"]
        believed = ask(here, f"{base}/holdings/{worker}")["ranks"]
        if state() != "live" or not believed:
            return False
        return {*believed[0]["tiers"].get("GPU", ())} == {*truth["GPU"]}

    async def story() -> None:
        try:
            await engine.start()
            await router.start()
            for number in range(5):
                work(here, base, number)
            until(is_right, "live, and what the engine holds")
            ip("-n", there, "link", "set", "cable", "down")
            cut = time.monotonic()
            work(there, f"http://{ENGINE}:30000", 77)
            until(lambda: state() != "live", "it says that it may be wrong")
            assert time.monotonic() - cut < DeliverySettings().detection_bound_s + MEASURING_S
            ip("-n", there, "link", "set", "cable", "up")
            until(is_right, "live again, and what the engine holds")
            assert engine.exceptions() == router.exceptions() == []
        finally:
            await router.kill()
            await engine.kill()

    asyncio.run(story())
