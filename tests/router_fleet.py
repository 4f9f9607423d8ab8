"""A router and its engines as processes of their own, for tests that end and start them one by one."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from engine_process import DEADLINE_S, EngineProcess, running_engine, wait_until

PAGE_SIZE = 16
_EVENTS = json.dumps({"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"})
ENGINE_OPTIONS = ("--page-size", str(PAGE_SIZE), "--speed", "20", "--kv-events-config", _EVENTS)


@dataclass
class RouterProcess:
    """A running router.

    Attributes:
        process: the process.
        url: where it listens.
        headers: what requests to it need.
    """

    process: subprocess.Popen[str]
    url: str
    headers: Mapping[str, str]

    def get(self, path: str) -> Any:
        """The JSON at a path."""
        return httpx.get(self.url + path, headers=self.headers, timeout=DEADLINE_S).raise_for_status().json()

    def complete(self, tokens: Sequence[int], **fields: Any) -> dict[str, Any]:
        """The answer to a completion."""
        body = {"prompt": list(tokens), "max_tokens": 4, **fields}
        answer = httpx.post(self.url + "/v1/completions", json=body, timeout=DEADLINE_S).raise_for_status().json()
        return dict(answer)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and wait; its exit code."""
        self.process.send_signal(number)
        self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode


@contextlib.contextmanager
def running_router(
    engines: Sequence[EngineProcess], *options: str, port: int = 0, admin_token: str | None = None
) -> Iterator[RouterProcess]:
    """Start a router, wait until it is ready for what it was given, and make sure that it is gone afterwards."""
    workers = [word for engine in engines for word in ("--worker", engine.url)]
    command = (sys.executable, "-m", "kvevents", "serve", "--port", str(port), *workers, *options)
    environment = dict(os.environ)
    if admin_token is not None:
        environment["KVEVENTS_ADMIN_TOKEN"] = admin_token
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                assert selector.select(DEADLINE_S), "the router said nothing"
            line = process.stdout.readline()
            assert line, f"the router ended before it was ready: {process.stderr.read() if process.stderr else ''}"
            url = json.loads(line)["url"]
            headers = {} if admin_token is None else {"Authorization": f"Bearer {admin_token}"}
            router = RouterProcess(process, url, headers)
            if engines:
                _wait_until_ready(router)
            yield router
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


def _wait_until_ready(router: RouterProcess) -> None:
    for _ in wait_until():
        if httpx.get(router.url + "/ready").status_code == 200:
            return


@contextlib.contextmanager
def running_engines(number: int, *options: str) -> Iterator[list[EngineProcess]]:
    """Engines with event sockets and small pages, started at once."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(number) as pool:
        engines = [running_engine(*ENGINE_OPTIONS, *options) for _ in range(number)]
        yield list(pool.map(stack.enter_context, engines))
