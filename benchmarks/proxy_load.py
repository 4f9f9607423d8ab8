"""What stands around a router while it is measured: engines that cost next to nothing and a client, both in Rust."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.http_client import HttpClient
from benchmarks.peers import ROOT

PROGRAMS = ROOT / "target" / "release"
OTHERS, ROUTER = 0, 1
"""The processors: one for the router that is measured, one for everything else."""


def build() -> None:
    """Compile both programs."""
    subprocess.run(["cargo", "build", "--quiet", "--release", "--locked", "-p", "kvevents-load"], cwd=ROOT, check=True)


def on(processor: int, *command: str) -> list[str]:
    """A command that runs on one processor alone, where the machine has more than one and can be told."""
    if shutil.which("taskset") is None or (os.cpu_count() or 1) <= processor:
        return [*command]
    return ["taskset", "--cpu-list", str(processor), *command]


class StandIns:
    """Engines that answer `/v1/completions` and `/v1/chat/completions` at once, and stream at the pace they are told.

    Args:
        kv_events: of each what it says of its event sockets in `/server_info`.

    Attributes:
        urls: of each.
    """

    def __init__(self, kv_events: Sequence[dict[str, Any]]) -> None:
        described = [json.dumps(one) for one in kv_events]
        self._process = subprocess.Popen(
            on(OTHERS, str(PROGRAMS / "workers"), *described), stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.urls: list[str] = json.loads(self._process.stdout.readline())["urls"]

    @property
    def ports(self) -> list[int]:
        return [int(url.rpartition(":")[2]) for url in self.urls]

    def chunks(self) -> int:
        """How many all of them have sent."""
        sent = 0
        for port in self.ports:
            with contextlib.closing(HttpClient(port)) as http:
                sent += json.loads(http.send(HttpClient.get("/counters")))["chunks"]
        return sent

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Load(NamedTuple):
    """What is asked, and how.

    Attributes:
        path: of the requests.
        bodies: sent in turns; the first `77777` of each is replaced by a number that changes.
        connections: to begin with.
        rate: requests a second, answered or not; 0: each connection asks again when it has its answer.
        seconds: how long requests are made.
        requests: after which it ends before that.
    """

    path: str
    bodies: Sequence[dict[str, Any]]
    connections: int
    rate: float = 0
    seconds: float = 60
    requests: int = 10**9

    def run(self, port: int) -> dict[str, Any]:
        """Ask, and say how it went."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "bodies")
            path.write_text("".join(json.dumps(body, separators=(",", ":")) + "\n" for body in self.bodies))
            numbers = (self.connections, self.rate, self.seconds, self.requests)
            command = on(OTHERS, str(PROGRAMS / "load"), str(port), self.path, str(path), *map(str, numbers))
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        figures: dict[str, Any] = json.loads(done.stdout)
        return figures
