"""A simulated engine as a process of its own, for integration tests."""

import contextlib
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

COMMAND = (sys.executable, "-m", "kvevents", "engine")
DEADLINE_S = 30.0


@dataclass
class EngineProcess:
    """A running engine.

    Attributes:
        process: the process.
        url: where it listens.
        kv_events: what it says of its event sockets.
    """

    process: subprocess.Popen[str]
    url: str
    kv_events: dict[str, Any]

    def holdings(self) -> dict[int, dict[str, set[int]]]:
        """Blocks of each rank and tier, as the engine says."""
        ranks = httpx.get(f"{self.url}/holdings", timeout=DEADLINE_S).raise_for_status().json()["ranks"]
        return {
            rank["dp_rank"]: {tier: set(blocks) for tier, blocks in rank["tiers"].items() if blocks} for rank in ranks
        }

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Signal it and wait; its exit code and what it wrote since it was ready."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err


@contextlib.contextmanager
def running_engine(*options: str, port: int = 0) -> Iterator[EngineProcess]:
    """Start an engine, wait until it listens, and make sure that it is gone afterwards."""
    with subprocess.Popen(
        [*COMMAND, "--port", str(port), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            ready = msgspec.json.decode(_first_line(process))
            yield EngineProcess(process, ready["url"], ready["kv_events"])
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


def run_to_end(*options: str) -> tuple[int, str, str]:
    """Start an engine that is expected to end by itself; exit code, stdout, stderr."""
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return done.returncode, done.stdout, done.stderr


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(DEADLINE_S):
            raise TimeoutError("the engine said nothing")
    line = process.stdout.readline()
    assert line, f"the engine ended before it was ready: {process.stderr.read()}"
    return line


def wait_until(deadline_s: float = DEADLINE_S) -> Iterator[None]:
    """For polling: yields until the deadline, then fails."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        yield
        time.sleep(0.01)
    raise TimeoutError(f"not within {deadline_s:g} s")
