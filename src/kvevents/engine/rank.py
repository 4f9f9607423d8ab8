"""One data-parallel rank: a scheduler, a cache and an announcer, driven by a clock."""

import asyncio
import logging
import math
from collections.abc import Sequence, Sized
from contextlib import ExitStack
from typing import Any, Protocol

from kvevents.caches import CachedLength, PrefixCache
from kvevents.engine.announcer import Announcer, EventSource
from kvevents.engine.clock import Clock
from kvevents.engine.request import Request, RequestState
from kvevents.engine.scheduler import Progress
from kvevents.events import StorageMedium

_log = logging.getLogger(__name__)


class RankCache(EventSource, Protocol):
    """A prefix cache that records events and can be looked into."""

    def cached_length(self, tokens: Any, /) -> CachedLength: ...
    def reset(self) -> object: ...
    def holdings(self) -> set[tuple[int, StorageMedium]]: ...


class PlannedStep(Protocol):
    """What a rank needs to know of a step: `Step` says what each field is."""

    @property
    def decoding(self) -> Sized: ...
    @property
    def seconds(self) -> float: ...
    @property
    def repeats(self) -> int: ...


class RankScheduler(Protocol):
    """How a rank's requests share its memory and its steps: `Scheduler` says what each method does."""

    retractions: int

    @property
    def waiting(self) -> Sequence[Request]: ...
    @property
    def running(self) -> Sequence[Request]: ...
    @property
    def is_idle(self) -> bool: ...
    @property
    def pending_tokens(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def used(self) -> int: ...
    def check_room(self, prompt_length: int, output_length: int) -> None: ...
    def add(self, request: Request) -> None: ...
    def abort(self, request: Request) -> None: ...
    def drop_aborted(self) -> None: ...
    def plan(self, *, most: int) -> PlannedStep | None: ...
    # Each scheduler is given back the steps that it planned.
    def commit(self, step: Any, *, repeats: int) -> Progress: ...


class Rank:
    """Runs one rank's steps in the clock's time.

    Args:
        scheduler: its queue and batch, over the memory of `cache`.
        cache: its prefix cache.
        announcer: its events' way out.
        clock: the time it lives in.
        resources: what is to be closed with it; None: nothing.
    """

    def __init__(
        self,
        scheduler: RankScheduler,
        cache: RankCache,
        announcer: Announcer,
        clock: Clock,
        *,
        resources: ExitStack | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.cache = cache
        self.announcer = announcer
        self.steps = 0
        self.prefilled_tokens = 0
        self.decoded_tokens = 0
        self.cached_tokens = 0
        self.finished_requests = 0
        self._clock = clock
        self._resources = resources or ExitStack()
        self._wake = asyncio.Event()
        self._paused = False

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            CapacityError: it is larger than the rank's memory.
        """
        self.scheduler.add(request)
        self._wake.set()

    def abort(self, request: Request) -> None:
        """Give up a request and its memory, at the latest after the step under way."""
        self.scheduler.abort(request)
        self._wake.set()

    def pause(self) -> None:
        """Start no further step; events recorded so far go out."""
        self._paused = True
        self._wake.set()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._paused = False
        self._wake.set()

    def flush(self) -> bool:
        """Empty the cache and announce it; False, and nothing done, while requests are waiting or running."""
        if not self.scheduler.is_idle:
            return False
        self.cache.reset()
        self.announcer.at_rest()
        return True

    def close_session(self, session_id: str) -> bool:
        """What is cached for a session goes in the usual order again; whether anything was."""
        return isinstance(self.cache, PrefixCache) and self.cache.close_session(session_id)

    def close(self) -> None:
        """Publish what there is and close what the rank has open, once `run` has ended; again is a no-op."""
        self.announcer.close()
        self._resources.close()

    async def run(self) -> None:
        """Step for ever; ends by cancellation, which like a fault aborts all requests."""
        try:
            await self._run()
        except Exception:
            _log.exception("a rank has failed and runs no step any more; its requests are given up")
            raise
        finally:
            for request in (*self.scheduler.waiting, *self.scheduler.running):
                request.state = RequestState.ABORTED
                request.on_update()

    async def _run(self) -> None:
        end = self._clock.now()
        while True:
            self._wake.clear()
            self.scheduler.drop_aborted()
            step = None if self._paused else self.scheduler.plan(most=self.announcer.steps_to_report)
            if step is None:
                self.announcer.at_rest()
                await self._clock.wait(self._wake)
                end = self._clock.now()
                continue
            repeats = await self._elapse(step, end)
            end += repeats * step.seconds
            self._commit(step, repeats)

    async def _elapse(self, step: PlannedStep, start: float) -> int:
        """Let a step's time pass; news ends a row of repeats after the one under way. Returns the repeats run."""
        repeats = step.repeats
        end = start + repeats * step.seconds
        await self._clock.wait(self._wake, end)
        now = self._clock.now()
        if now < end and repeats > 1:
            repeats = min(repeats, max(1, math.ceil((now - start) / step.seconds)))
            end = start + repeats * step.seconds
        while self._clock.now() < end:
            self._wake.clear()
            await self._clock.wait(self._wake, end)
        return repeats

    def _commit(self, step: PlannedStep, repeats: int) -> None:
        progress = self.scheduler.commit(step, repeats=repeats)
        self.steps += repeats
        self.prefilled_tokens += progress.prefilled
        self.decoded_tokens += repeats * len(step.decoding)
        self.announcer.after(progress)
        for request in progress.updated:
            if request.state is RequestState.FINISHED:
                self.finished_requests += 1
                self.cached_tokens += request.cached or 0
            request.on_update()
