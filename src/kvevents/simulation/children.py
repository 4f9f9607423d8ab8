"""`kvevents` commands as processes of their own, none of which outlives us."""

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

import msgspec

from kvevents.errors import TransportError

PROGRAM = (sys.executable, "-m", "kvevents")
"""What a child runs, before its arguments."""

LAST_WORDS = 5
"""Lines of a child's stderr that an error message quotes."""

STOP_GRACE_S = 3.0


class Child:
    """A running `kvevents` command, in a process group of its own.

    Its stdin is a pipe that we hold: the command ends when it closes, even if we are killed.

    Attributes:
        name: what to call it in messages.
        ready: the JSON object it printed when it was ready.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.ready: dict[str, Any] = {}
        self._process = process
        self._last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self._drains: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, name: str, arguments: Sequence[str], *, ready_within_s: float = 30.0) -> Self:
        """Start `kvevents <arguments>` and wait for the JSON line that says it is ready.

        Raises:
            TransportError: it ended, or said something else, or nothing in time; with its last words.
        """
        process = await asyncio.create_subprocess_exec(
            *PROGRAM,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=_environment(),
        )
        child = cls(name, process)
        try:
            await child._become_ready(ready_within_s)
        except BaseException:
            await child.stop()
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        """Where it listens, by its ready line."""
        return str(self.ready["url"])

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    def obituary(self) -> str:
        """How it ended and what it said last, in one line."""
        code = self._process.returncode
        if code is None:
            how = "is running"
        elif code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        words = "; ".join(self._last_words)
        return f"{self.name} (pid {self.pid}) {how}" + (f": {words}" if words else "")

    def end(self, reason: str) -> None:
        """Kill the process; its obituary says why."""
        self._last_words.append(reason)
        self._signal(signal.SIGKILL)

    async def ended(self) -> None:
        """Wait until it has ended by itself and everything it said was heard."""
        await self._process.wait()
        await asyncio.gather(*self._drains)

    async def stop(self) -> None:
        """End the process and its group: in order first, by force after 3 seconds."""
        if self.is_running:
            self._signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), STOP_GRACE_S)
            except TimeoutError:
                self._signal(signal.SIGKILL)
                await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self.ended()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def _become_ready(self, within_s: float) -> None:
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        self._drains.append(asyncio.create_task(self._listen(stderr)))
        try:
            line = await asyncio.wait_for(stdout.readline(), within_s)
        except TimeoutError:
            raise TransportError(f"{self.obituary()}: expected to be ready within {within_s:.0f} s") from None
        self._drains.append(asyncio.create_task(_discard(stdout)))
        if not line:
            await self.ended()
            raise TransportError(f"{self.obituary()} (before it was ready)")
        try:
            self.ready = msgspec.json.decode(line, type=dict[str, Any])
            _ = self.url
        except (msgspec.DecodeError, KeyError) as error:
            said = line.decode(errors="replace").strip()
            raise TransportError(f"{self.name}: expected a JSON line with `url` when ready, got: {said}") from error

    async def _listen(self, stderr: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stderr.readline()
            except ValueError:  # longer than the reader's limit: not worth quoting
                continue
            if not line:
                return
            if text := line.decode(errors="replace").strip():
                self._last_words.append(text)


def _environment() -> dict[str, str]:
    """Ours, but for settings meant for another `kvevents`, such as tokens."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVEVENTS_")}
    return kept | {"KVEVENTS_END_WITH_STDIN": "1"}


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        pass
