"""Commands of kvevents as processes that are killed, stopped, and started anew on the same ports."""

import asyncio
import contextlib
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

READY_S = 30.0


class Process:
    """One command. What it writes on stderr goes to a file, over all its lives.

    Args:
        name: what reports call it.
        command: `kvevents` command and its options.
        log: the file.
        machine: the network namespace that it runs in; None: this one.
    """

    def __init__(self, name: str, *command: str, log: Path, machine: str | None = None) -> None:
        self.name = name
        entered = () if machine is None else ("ip", "netns", "exec", machine)
        self._command = (*entered, sys.executable, "-m", "kvevents", *command)
        self._log = log
        self._running: asyncio.subprocess.Process | None = None
        self.starts = 0

    @property
    def is_running(self) -> bool:
        return self._running is not None

    @property
    def pid(self) -> int:
        """Of the life it leads now."""
        assert self._running is not None
        return self._running.pid

    async def start(self) -> dict[str, Any]:
        """Start it and wait for the line that says it is ready."""
        with self._log.open("ab") as log:
            self._running = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self.starts += 1
        assert self._running.stdout is not None
        async with asyncio.timeout(READY_S):
            line = await self._running.stdout.readline()
        assert line, f"{self.name} ended before it was ready: {self._log.read_text()[-2000:]}"
        ready: dict[str, Any] = msgspec.json.decode(line)
        return ready

    async def kill(self) -> None:
        """As `kill -9`."""
        running, self._running = self._running, None
        if running is not None:
            with contextlib.suppress(ProcessLookupError):
                running.kill()
            await running.wait()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def exceptions(self) -> list[str]:
        """The tracebacks it wrote, each as its text; also a death that nobody asked for."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        found = ["Traceback" + part[:2000] for part in text.split("Traceback")[1:]]
        if self._running is not None and self._running.returncode is not None:
            found.append(f"ended by itself with code {self._running.returncode}: {text[-1000:]}")
        return found

    def _signal(self, number: signal.Signals) -> None:
        if self._running is not None and self._running.returncode is None:
            self._running.send_signal(number)


def free_ports(number: int, *addresses: str) -> list[int]:
    """Ports in a row that are free on all addresses."""
    for _ in range(100):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError, OverflowError):
            first = 0
            for address in addresses:
                for offset in range(number):
                    probe = held.enter_context(socket.socket())
                    probe.bind((address, first + offset if first else 0))
                    first = first or probe.getsockname()[1]
            return list(range(first, first + number))
    raise AssertionError(f"found no {number} free ports in a row")
