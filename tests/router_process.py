"""A router as a process of its own, for integration tests."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import msgspec

DEADLINE_S = 30.0


@contextlib.contextmanager
def running_router(*options: str) -> Iterator[str]:
    """Start a router, wait until it listens, and make sure that it is gone afterwards; its URL."""
    command = [sys.executable, "-m", "kvevents", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready, f"the router ended with {process.wait(DEADLINE_S)}"
            yield msgspec.json.decode(ready)["url"]
        finally:
            process.terminate()
            process.wait(DEADLINE_S)
