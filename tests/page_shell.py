"""Commands of pages and manifests, run in a folder of their own, on free ports."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
DEADLINE_S = 30.0


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Shell:
    """Runs blocks in a folder, with free ports in place of the page's.

    Args:
        folder: where.
        ports: those of the page.
    """

    def __init__(self, folder: Path, ports: Sequence[str] = ("30000", "8000", "5557", "5558", "8080")) -> None:
        self._folder = folder
        self.ports = dict(zip(ports, free_ports(len(ports)), strict=True))
        self._environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}

    def filled(self, block: str) -> str:
        """A block with other ports."""
        for page, free in self.ports.items():
            block = block.replace(f":{page}", f":{free}").replace(f"--port {page}", f"--port {free}")
        return block

    def run(self, block: str) -> str:
        """What a block prints."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.filled(block)],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextlib.contextmanager
    def running(self, block: str) -> Iterator[Mapping[str, Any]]:
        """A block that goes on, and the line of JSON that it says first."""
        process = subprocess.Popen(
            ["bash", "-euc", self.filled(block)],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.stdout.close()
            process.wait(DEADLINE_S)


def is_live(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/workers") as answer:
        workers = json.load(answer)["workers"]
    return all(worker["sources"] for worker in workers) and all(
        source["state"] == "live" for worker in workers for source in worker["sources"]
    )


def wait_until_live(url: str) -> None:
    """Until the router has a complete picture of every worker."""
    until = time.monotonic() + DEADLINE_S
    while not is_live(url):
        assert time.monotonic() < until
        time.sleep(0.02)
