"""A configured tokenizer: the processes that run it, and whether it agrees with the engine."""

import asyncio
import contextlib
import logging
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from kvevents.server.prompts.agreement import Agreement, Verdict
from kvevents.server.prompts.process import Encoded, Job, TokenizerProcess, TokenizingError
from kvevents.server.prompts.settings import BYTES, PromptSettings, TokenizerSettings

_log = logging.getLogger("kvevents.server")


class ModelState(msgspec.Struct, frozen=True):
    """How it stands with one tokenizer, for figures and pages.

    Attributes:
        models: the pattern of its models.
        state: `ready`, `loading`, `failed`, or `idle` before it was needed.
        reason: what is wrong with it; None when nothing is.
        note: what was found out about its template.
        verdict: whether the engine counts the same tokens in prompts; `unknown` before the first comparison.
        agreed: prompts of which it did.
        disagreed: prompts of which it did not.
        example: the last difference.
    """

    models: str
    state: Literal["idle", "loading", "ready", "failed"]
    reason: str | None
    note: str | None
    verdict: Verdict
    agreed: int
    disagreed: int
    example: str | None


class Model:
    """Encodes the prompts of the models that one pattern names.

    Args:
        tokenizer: which files.
        settings: bounds.
    """

    def __init__(self, tokenizer: TokenizerSettings, settings: PromptSettings) -> None:
        self._pattern = tokenizer.models
        self._timeout_s = settings.timeout_s
        self.is_bytes = tokenizer.path == BYTES
        count = 0 if self.is_bytes else settings.processes
        self._processes = [TokenizerProcess(tokenizer, settings) for _ in range(count)]
        self._idle: asyncio.LifoQueue[TokenizerProcess] = asyncio.LifoQueue()
        for process in reversed(self._processes):
            self._idle.put_nowait(process)
        self._running: set[asyncio.Task[Encoded]] = set()
        self._agreement = Agreement()
        self.agreed = 0
        self.disagreed = 0

    def fits(self, model: str) -> bool:
        """Whether this is the tokenizer of that model."""
        return fnmatchcase(model, self._pattern)

    def start(self) -> None:
        """Begin to load it."""
        for process in self._processes:
            process.start()

    async def encode(self, job: Job) -> Encoded:
        """The ids of a prompt.

        Raises:
            TokenizingError: they cannot be had.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                process = await self._idle.get()
        except TimeoutError:
            raise TokenizingError("busy", f"it waited longer than {self._timeout_s:g} s for its turn") from None
        # A client that leaves must not leave half an answer behind in the pipe.
        running = asyncio.get_running_loop().create_task(self._run(process, job))
        self._running.add(running)
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)

    def is_due(self) -> bool:
        """Whether a prompt is to be tokenized: seldom while the engine disagrees."""
        return self._agreement.is_due()

    def observe(self, ours: int, engines: int) -> bool:
        """Note how many tokens the engine counted in a prompt; whether that is what was counted here."""
        before = self._agreement.verdict
        agrees = self._agreement.observe(ours, engines)
        if self._agreement.verdict != before:
            if self._agreement.verdict == "disagrees":
                _log.warning("%s; its prompts are routed by their text", self.disagreement())
            else:
                _log.info("the engine counts the same tokens in prompts of %s", self._pattern)
        self.agreed += agrees
        self.disagreed += not agrees
        return agrees

    def disagreement(self) -> str:
        """What the engine says otherwise."""
        return f"the engine counts other tokens in prompts of {self._pattern}: {self._agreement.example}"

    def state(self) -> ModelState:
        """How it stands."""
        state: Literal["idle", "loading", "ready", "failed"] = "ready"
        if self._processes and not any(process.is_loaded for process in self._processes):
            troubled = any(process.trouble for process in self._processes)
            loading = any(process.is_loading for process in self._processes)
            state = "loading" if loading else "failed" if troubled else "idle"
        return ModelState(
            models=self._pattern,
            state=state,
            reason=next((process.trouble for process in self._processes if process.trouble), None),
            note=next((process.note for process in self._processes if process.note), None),
            verdict=self._agreement.verdict,
            agreed=self.agreed,
            disagreed=self.disagreed,
            example=self._agreement.example,
        )

    async def close(self) -> None:
        """End its processes."""
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        for process in self._processes:
            await process.close()

    async def _run(self, process: TokenizerProcess, job: Job) -> Encoded:
        try:
            return await process.encode(job)
        finally:
            self._idle.put_nowait(process)

    def _ended(self, task: "asyncio.Task[Encoded]") -> None:
        self._running.discard(task)
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()  # looked at, also where nobody waits any more
