"""The routers that are compared, each as its users start it, in front of the same engines and on one processor."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.http_client import HttpClient
from benchmarks.peers import ENVIRONMENT, Unavailable, install
from benchmarks.proxy_load import ROUTER, on

VERSIONS = {"vllm-router": "0.1.17", "sglang-router": "0.3.2"}
START_S = 60.0
PROMPT = HttpClient.post("/v1/completions", {"model": "model", "prompt": "Are you there?", "max_tokens": 1})


def install_peers() -> None:
    """Put both into the peers' environment.

    Raises:
        Unavailable: one of them cannot be had here.
    """
    for name, version in VERSIONS.items():
        install(f"{name}=={version}", dependencies=True)


def free_port() -> int:
    """One that nobody listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


class Router:
    """One that runs.

    Args:
        name: as results call it.
        command: that starts it.
        port: where it listens then; None: it prints a line of JSON with its `url`.

    Raises:
        Unavailable: it does not answer a request in time.
    """

    def __init__(self, name: str, command: Sequence[str], port: int | None = None) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            on(ROUTER, *command),
            stdout=self._log if port else subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.port = port or self._announced()
        self._wait()

    def processor_seconds(self) -> float:
        """What it has used so far, all its threads, to the nanosecond."""
        return sum(_thread_seconds(task) for task in Path(f"/proc/{self._process.pid}/task").iterdir())

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _announced(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failed()
        url: str = json.loads(line)["url"]
        return int(url.rpartition(":")[2])

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                client = HttpClient(self.port)
                try:
                    client.send(PROMPT)
                finally:
                    client.close()
            except (OSError, RuntimeError):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise self._failed() from None
                time.sleep(0.1)
            else:
                return

    def _failed(self) -> Unavailable:
        self._log.seek(0)
        said = self._log.read().strip().splitlines()
        self.close()
        return Unavailable(f"{self.name} does not start here: {said[-1] if said else 'it says nothing'}")


def _thread_seconds(task: Path) -> float:
    try:
        return int((task / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except OSError:  # it has ended
        return 0.0


def ours(urls: Sequence[str]) -> Router:
    """`kvevents serve`, which finds the engines' events through their `/server_info`; back when it has them all."""
    workers = [option for url in urls for option in ("--worker", url)]
    router = Router("ours", [sys.executable, "-m", "kvevents", "serve", "--port", "0", "--policy", "kv", *workers])
    deadline = time.monotonic() + START_S
    client = HttpClient(router.port)
    try:
        while True:
            told = json.loads(client.send(HttpClient.get("/workers")))["workers"]
            states = [source["state"] for worker in told for source in worker["sources"]]
            if len(states) == len(urls) and set(states) == {"live"}:
                return router
            if time.monotonic() > deadline:
                router.close()
                raise RuntimeError(f"ours: expected live events from {len(urls)} engines, got {states}")
            time.sleep(0.1)
    finally:
        client.close()


def vllm(urls: Sequence[str]) -> Router:
    """vLLM's router."""
    port, metrics = free_port(), free_port()
    command = [str(ENVIRONMENT / "bin" / "vllm-router"), *_peer_options(urls, port, metrics), "--log-level", "warning"]
    return Router("vllm-router", command, port)


def sglang(urls: Sequence[str]) -> Router:
    """SGLang's router."""
    port, metrics = free_port(), free_port()
    launch = [str(ENVIRONMENT / "bin" / "python"), "-m", "sglang_router.launch_router"]
    return Router("sglang-router", [*launch, *_peer_options(urls, port, metrics), "--log-level", "warn"], port)


def _peer_options(urls: Sequence[str], port: int, metrics: int) -> list[str]:
    listen = ["--host", "127.0.0.1", "--port", str(port)]
    ports = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
    return [*listen, "--worker-urls", *urls, "--policy", "cache_aware", *ports]
