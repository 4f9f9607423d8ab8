"""A NATS broker of a benchmark's own, that can be killed and started again; skipped where nats-server is missing."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peers import Unavailable
from benchmarks.process import processor_seconds

_DEADLINE_S = 30.0


class Broker:
    """`nats-server` on a free port of the loopback interface, its log and streams in a folder.

    Attributes:
        url: where it listens.

    Raises:
        Unavailable: it is not installed.
    """

    def __init__(self, folder: Path) -> None:
        binary = shutil.which("nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if binary is None:
            raise Unavailable("nats-server is not installed: `make system-packages` as root")
        self._binary = binary
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._spent = 0.0

    def start(self) -> None:
        """Starts it and waits until it answers."""
        command = [self._binary, "-a", "127.0.0.1", "-p", str(self._port), "-js", "-sd", str(self._folder / "store")]
        with (self._folder / "nats.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _DEADLINE_S
        while not self._answers():
            assert time.monotonic() < deadline, (self._folder / "nats.log").read_text()[-2_000:]
            time.sleep(0.01)

    def kill(self) -> None:
        """Kills it with whatever is under way."""
        if self._process is not None:
            self._spent = self.processor_s
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def processor_s(self) -> float:
        """Processor time of all its lives."""
        if self._process is None:
            return self._spent
        return self._spent + processor_seconds(self._process.pid)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as probe:
            return probe.recv(4) == b"INFO"
        return False
