"""A broker of the tests' own: nats-server on a free port, with a store of its own."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

DEADLINE_S = 30.0


def require_nats_server() -> str:
    """Where nats-server is; without it the test is skipped, but in CI it fails."""
    found = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin:/usr/local/sbin")
    if found is not None:
        return found
    reason = "nats-server is not installed: `make system-packages` as root, or `apt-get install nats-server`"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class NatsServer:
    """A broker that can be killed and started again on its port and store.

    Args:
        folder: its own.
        extra: lines for its configuration.
    """

    def __init__(self, folder: Path, extra: str = "") -> None:
        self._binary = require_nats_server()
        self._folder = folder
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.configure(extra)

    def configure(self, extra: str) -> None:
        """What it is told at its next start."""
        self._folder.mkdir(parents=True, exist_ok=True)
        store = self._folder / "store"
        (self._folder / "nats.conf").write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{store}" }}\n{extra}\n'
        )

    def start(self) -> Self:
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._binary, "-c", str(self._folder / "nats.conf")], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        wait_until(self._listens, f"nats-server does not listen: {(self._folder / 'log').read_text()[-2000:]}")
        return self

    def kill(self) -> None:
        """As a power failure would end it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self._folder / "log").read_text()[-2000:]
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as probe:
            return probe.recv(4) == b"INFO"
        return False


def wait_until(met: Callable[[], object], otherwise: str | Callable[[], object], timeout: float = DEADLINE_S) -> None:
    """Polls until `met`; fails with `otherwise` after a deadline."""
    deadline = time.monotonic() + timeout
    while not met():
        assert time.monotonic() < deadline, otherwise() if callable(otherwise) else otherwise
        time.sleep(0.005)


@contextlib.contextmanager
def running_nats(folder: Path, extra: str = "") -> Iterator[NatsServer]:
    with NatsServer(folder, extra) as server:
        yield server
