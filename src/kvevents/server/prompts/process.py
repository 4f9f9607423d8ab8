"""One process that renders and tokenizes: whatever a template does there, it ends with the process."""

import asyncio
import contextlib
import logging
import os
import struct
import sys
import time
from typing import Any, NamedTuple

import msgspec

from kvevents.server.prompts.counters import StandInReason
from kvevents.server.prompts.settings import PromptSettings, TokenizerSettings

LENGTH = struct.Struct("<I")
"""Before every message, in both directions."""

LOAD_FACTOR = 30
"""Loading a tokenizer may take so many times what a prompt may."""

_log = logging.getLogger("kvevents.server")

_LONGEST_PAUSE_S = 60.0
_KEPT = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""Of the environment; the router's secrets are none of a template's business."""


class TokenizingError(Exception):
    """A prompt's ids cannot be had; the message says why.

    Attributes:
        reason: the counter that it goes to.
    """

    def __init__(self, reason: StandInReason, message: str) -> None:
        super().__init__(message)
        self.reason: StandInReason = reason


class Encoded(NamedTuple):
    """What became of a text or a chat.

    Attributes:
        tokens: its ids, 32 bits each.
        media: images and the like: the token before which each stands, and its identity.
    """

    tokens: memoryview
    media: list[tuple[int, str]]


class Task(msgspec.Struct, frozen=True):
    """What the process is told when it starts."""

    tokenizer: TokenizerSettings
    timeout_s: float
    max_text_bytes: int
    max_memory_bytes: int


class Loaded(msgspec.Struct):
    """What the process says when it has loaded its tokenizer."""

    error: str | None = None
    note: str | None = None


class Job(msgspec.Struct, array_like=True):
    """A prompt: a chat as JSON, or text."""

    chat: bytes | None
    text: str | None
    add_special_tokens: bool = False


class Answer(msgspec.Struct, array_like=True):
    """Ids of 32 bits in the machine's order, and media; or why not."""

    ids: bytes = b""
    media: list[tuple[int, str]] = []
    reason: StandInReason | None = None
    error: str | None = None


class TokenizerProcess:
    """Starts when it is needed, one prompt at a time; ended when it takes too long, and started again later."""

    def __init__(self, tokenizer: TokenizerSettings, settings: PromptSettings) -> None:
        self._task = Task(tokenizer, settings.timeout_s, settings.max_text_bytes, settings.max_memory_bytes)
        self._timeout_s = settings.timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._loading: asyncio.Task[None] | None = None
        self._failures = 0
        self._paused_until = 0.0
        self.is_loaded = False
        self.note: str | None = None
        self.trouble: str | None = None

    @property
    def is_loading(self) -> bool:
        """Whether it has begun to load and is not there yet."""
        return self._loading is not None and not self._loading.done()

    def start(self) -> None:
        """Begin to load, unless that is done, or failed a short time ago."""
        if self._loading is None and time.monotonic() >= self._paused_until:
            self._loading = asyncio.get_running_loop().create_task(self._load())

    async def encode(self, job: Job) -> Encoded:
        """The ids of a prompt.

        Raises:
            TokenizingError: they cannot be had.
        """
        self.start()
        if self._loading is None:
            raise TokenizingError("failed", self.trouble or "its process ended")
        done, _ = await asyncio.wait({self._loading}, timeout=self._timeout_s)
        if not done:
            raise TokenizingError("loading", "its tokenizer is being loaded")
        if not self.is_loaded:
            raise TokenizingError("failed", self.trouble or "its process ended")
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = msgspec.msgpack.decode(await self._exchange(msgspec.msgpack.encode(job)), type=Answer)
        except TimeoutError:
            trouble = f"a prompt took longer than {self._timeout_s:g} s (prompts.timeout_s)"
            await self._fail(trouble)
            raise TokenizingError("timeout", trouble) from None
        except (OSError, EOFError, msgspec.DecodeError):
            trouble = "its process ended over a prompt (prompts.max_memory_bytes bounds what it may take)"
            await self._fail(trouble)
            raise TokenizingError("failed", trouble) from None
        self._failures = 0
        if answer.reason is not None:
            raise TokenizingError(answer.reason, answer.error or answer.reason)
        return Encoded(memoryview(answer.ids).cast("I"), answer.media)

    async def close(self) -> None:
        """End the process."""
        loading, self._loading = self._loading, None
        if loading is not None:
            loading.cancel()
            await asyncio.wait({loading})
        await self._end()

    async def _load(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s * LOAD_FACTOR):
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "kvevents.server.prompts.child",
                    msgspec.json.encode(self._task).decode(),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env={name: os.environ[name] for name in _KEPT if name in os.environ},
                )
                loaded = msgspec.msgpack.decode(await self._receive(), type=Loaded)
        except TimeoutError:
            loaded = Loaded(error=f"loading took longer than {self._timeout_s * LOAD_FACTOR:g} s")
        except (OSError, EOFError, msgspec.DecodeError) as error:
            loaded = Loaded(error=f"its process ended while it loaded: {error or type(error).__name__}")
        self.note = loaded.note
        self.is_loaded = loaded.error is None
        if loaded.error is not None:
            await self._fail(loaded.error)
        else:
            self.trouble = None

    async def _fail(self, trouble: str) -> None:
        """End the process; the next one may start after a pause that grows."""
        self.trouble = trouble
        _log.warning("tokenizer of %s: %s", self._task.tokenizer.models, trouble)
        self._paused_until = time.monotonic() + min(2.0 ** min(self._failures, 10), _LONGEST_PAUSE_S)
        self._failures += 1
        self.is_loaded = False
        await self._end()
        self._loading = None

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()

    async def _exchange(self, message: bytes) -> bytes:
        process: Any = self._process
        if process is None:
            raise EOFError
        process.stdin.write(LENGTH.pack(len(message)) + message)
        await process.stdin.drain()
        return await self._receive()

    async def _receive(self) -> bytes:
        process: Any = self._process
        if process is None:
            raise EOFError
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        answer: bytes = await process.stdout.readexactly(length)
        return answer
