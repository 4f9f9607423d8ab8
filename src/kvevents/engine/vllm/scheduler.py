"""vLLM's scheduling: first come, first served, over a pool of blocks."""

import sys
from array import array
from collections import deque
from typing import NamedTuple

from kvevents.caches import BlockPoolCache
from kvevents.engine.request import Request, RequestState
from kvevents.engine.scheduler import Progress, check_queue, check_size
from kvevents.engine.timing import TimingModel
from kvevents.engine.vllm.sequence import Sequence


class Scheduled(NamedTuple):
    """A sequence's share of a step."""

    sequence: Sequence
    tokens: int
    """How many it computes."""
    yields: bool
    """Whether an output comes of it."""
    decodes: bool
    """Whether it goes on from an output, rather than computing a prompt (or computing it again)."""


class VllmStep(NamedTuple):
    """One forward pass, or several equal ones in a row."""

    scheduled: list[Scheduled]
    """In the order in which they were planned."""
    decoding: list[Request]
    """Those of them that get one more token in each repeat."""
    seconds: float
    """Duration of one repeat."""
    repeats: int
    """How often it can be run before anything but a decode is due."""


class VllmScheduler:
    """Waiting queue and running batch of one rank, as vLLM 0.32 has them. Pure: no clock, no sockets.

    A step computes at most `max_tokens` tokens: first those of running requests in the order of their admission, then
    those of waiting ones from the head of the queue, as long as nobody had to be preempted. Blocks are taken for what a
    step computes, and published when the step that fills them is planned. Where a running request finds no block, the
    youngest is preempted, possibly itself: it gives all its blocks back and waits at the head of the queue.

    Asynchronous: `plan` also plans the step after the one it returns, before anything is known of its outcome. What
    planning announces is thus announced one step earlier, and a block that an output fills one step later.

    Args:
        cache: the rank's blocks.
        timing: how long steps take.
        max_tokens: tokens that a step may compute.
        max_running: requests that may run at once.
        max_waiting: requests that may wait.
        asynchronous: plan each step while the one before it runs.
    """

    def __init__(
        self,
        cache: BlockPoolCache,
        timing: TimingModel,
        *,
        max_tokens: int,
        max_running: int,
        max_waiting: int = sys.maxsize,
        asynchronous: bool = False,
    ) -> None:
        self.retractions = 0
        self._cache = cache
        self._timing = timing
        self._max_tokens = max_tokens
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._asynchronous = asynchronous
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._ahead: list[Scheduled] = []
        self._aborted: list[Request] = []
        self._sequences: dict[Request, Sequence] = {}
        self._has_news = False  # planning has changed what is cached

    @property
    def waiting(self) -> list[Request]:
        """Requests in the queue, its head first."""
        return [sequence.request for sequence in self._waiting]

    @property
    def running(self) -> list[Request]:
        """Requests that hold blocks, the oldest first."""
        return [sequence.request for sequence in self._running]

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._waiting and not self._running

    @property
    def pending_tokens(self) -> int:
        """Tokens still to compute for all requests, those in the cache not yet subtracted for waiting ones."""
        return sum(len(sequence.request.tokens) - sequence.planned for sequence in (*self._waiting, *self._running))

    @property
    def capacity(self) -> int:
        """Tokens that fit into the rank's memory."""
        return self._cache.capacity

    @property
    def used(self) -> int:
        """Tokens of memory that are in use or cached."""
        free = self._cache.free_blocks * self._cache.page_size - self._cache.evictable
        return self._cache.capacity - free

    def check_room(self, prompt_length: int, output_length: int) -> None:
        """Whether a request can be queued.

        Raises:
            CapacityError: it could not run even alone.
            QueueFullError: too many are waiting; later there may be room.
        """
        need = self._blocks_for(prompt_length + max(output_length - 1, 0)) * self._cache.page_size
        check_size(prompt_length, output_length, need=need, capacity=self.capacity)
        check_queue(len(self._waiting), self._max_waiting)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            CapacityError, QueueFullError: as `check_room`.
        """
        self.check_room(request.prompt_length, request.output_length)
        chain = self._cache.chain(request.view, extra_key=request.extra_key, cache_salt=request.cache_salt)
        sequence = self._sequences[request] = Sequence(request, chain)
        request.state = RequestState.WAITING
        self._waiting.append(sequence)

    def abort(self, request: Request) -> None:
        """Drop a request at the next `plan` or `drop_aborted`; steps in flight still compute for it."""
        self._aborted.append(request)

    def drop_aborted(self) -> None:
        """Take the blocks of aborted requests back; not between `plan` and `commit`."""
        for request in self._aborted:
            if (sequence := self._sequences.get(request)) is not None:
                self._end(sequence, RequestState.ABORTED)
        self._aborted.clear()

    def plan(self, *, most: int = 1) -> VllmStep | None:
        """The next step, with blocks taken for it; None when nothing is to be done.

        Args:
            most: repeats of a pure decode step that the caller would like to run in one go.
        """
        self.drop_aborted()
        self._has_news = False
        scheduled = self._ahead or self._schedule()
        self._ahead = self._schedule() if scheduled and self._asynchronous else []
        if not scheduled:
            return None
        prefilled = sum(share.tokens for share in scheduled if not share.decodes)
        decoding = [share.sequence.request for share in scheduled if share.decodes]
        seconds = self._timing.step_s(prefill_tokens=prefilled, decoding=len(decoding))
        repeats = self._repeats(most) if decoding and not prefilled else 1
        return VllmStep(scheduled, decoding, seconds, repeats)

    def commit(self, step: VllmStep, *, repeats: int = 1) -> Progress:
        """Apply a step that has run.

        Args:
            step: what `plan` returned last.
            repeats: how often it has run, at most `step.repeats`.
        """
        assert 1 <= repeats <= step.repeats
        updated = [share.sequence.request for share in step.scheduled if self._apply(share, repeats)]
        return Progress(
            prefilled=sum(share.tokens for share in step.scheduled if not share.decodes),
            decode_steps=repeats if step.decoding else 0,
            updated=updated,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError where requests or blocks are in an impossible state."""
        self._cache.check_integrity()
        for sequence in self._running:
            assert sequence.request.state is RequestState.RUNNING
            assert len(sequence.blocks) == self._blocks_for(sequence.planned)
            assert sequence.published <= sequence.planned // self._cache.page_size
            assert sequence.awaited <= int(self._asynchronous)
        for sequence in self._waiting:
            assert sequence.request.state is RequestState.WAITING
            assert not sequence.blocks
            assert not sequence.planned
        assert len(self._running) <= self._max_running
        assert len(self._running) + len(self._waiting) == len(self._sequences)
        held = self._cache.capacity // self._cache.page_size - self._cache.free_blocks
        assert held == len({block for sequence in self._running for block in sequence.blocks})

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._cache.page_size)

    def _schedule(self) -> list[Scheduled]:
        """Plan a step for whoever it can be planned for."""
        scheduled: list[Scheduled] = []
        retractions = self.retractions
        budget = self._continue(scheduled)
        if self.retractions == retractions:
            self._admit(scheduled, budget)
        return scheduled

    def _continue(self, scheduled: list[Scheduled]) -> int:
        """Plan for running sequences; returns what is left of the step's tokens."""
        budget = self._max_tokens
        for sequence in list(self._running):
            if not budget or sequence.request.state is not RequestState.RUNNING:
                break  # the youngest were preempted for an older one
            tokens = 0 if sequence.awaits_last else min(sequence.unplanned, budget)
            if not tokens:
                continue
            if not self._grow_or_preempt(sequence, tokens):
                break
            scheduled.append(self._share(sequence, tokens))
            budget -= tokens
        return budget

    def _admit(self, scheduled: list[Scheduled], budget: int) -> None:
        """Plan for waiting sequences; nobody overtakes one that finds no room."""
        in_flight: list[Sequence] = []  # preempted, and not returned yet
        while budget and self._waiting and len(self._running) < self._max_running:
            sequence = self._waiting[0]
            if sequence.stale:
                in_flight.append(self._waiting.popleft())
                continue
            known = sequence.request.known
            # The last token is computed in any case: its step brings the next output.
            usable, _ = sequence.chain.split((known - 1) // self._cache.page_size)
            found = self._cache.lookup(usable)
            if self._blocks_for(known) - len(found) + self._cache.parked(found) > self._cache.free_blocks:
                break
            self._waiting.popleft()
            self._start(sequence, found)
            tokens = min(sequence.unplanned, budget)
            self._grow(sequence, tokens)
            scheduled.append(self._share(sequence, tokens))
            budget -= tokens
        self._waiting.extendleft(reversed(in_flight))

    def _start(self, sequence: Sequence, found: memoryview) -> None:
        self._cache.hold(found)
        sequence.blocks = array("q", bytes(found))
        sequence.published = len(found)
        sequence.planned = len(found) * self._cache.page_size
        request = sequence.request
        request.computed = sequence.planned
        if request.cached is None:
            request.cached = sequence.planned
        request.state = RequestState.RUNNING
        self._running.append(sequence)

    def _grow_or_preempt(self, sequence: Sequence, tokens: int) -> bool:
        """Make room by preempting younger sequences; False when it was the sequence's own turn."""
        while self._blocks_for(sequence.planned + tokens) - len(sequence.blocks) > self._cache.free_blocks:
            victim = self._running.pop()
            self._cache.release(victim.blocks)
            victim.forget()
            victim.request.computed = 0
            victim.request.state = RequestState.WAITING
            victim.request.retractions += 1
            self.retractions += 1
            self._waiting.appendleft(victim)
            if victim is sequence:
                return False
        self._grow(sequence, tokens)
        return True

    def _grow(self, sequence: Sequence, tokens: int) -> None:
        """Take the blocks that so many more tokens need, and publish those that they fill."""
        end = sequence.planned + tokens
        missing = self._blocks_for(end) - len(sequence.blocks)
        if missing > 0:
            sequence.blocks.frombytes(self._cache.take(missing).cast("B"))
            self._has_news = True
        self._publish(sequence, min(end, sequence.request.known))

    def _publish(self, sequence: Sequence, tokens: int) -> None:
        """Publish the blocks that the first `tokens` tokens fill."""
        start, end = sequence.published, tokens // self._cache.page_size
        if end <= start:
            return
        _, run = sequence.chain.split(end)[0].split(start)
        size = self._cache.page_size
        request = sequence.request
        view = request.view[start * size : end * size]
        self._cache.publish(sequence.blocks[start:end], run, view, session_id=request.session_id)
        sequence.published = end
        self._has_news = True

    def _share(self, sequence: Sequence, tokens: int) -> Scheduled:
        """Note that a step computes `tokens` of a sequence, and what comes of it."""
        decodes = sequence.is_decoding
        sequence.planned += tokens
        sequence.in_flight += tokens
        yields = not sequence.unplanned
        if yields and self._asynchronous:
            sequence.awaited += 1
        return Scheduled(sequence, tokens, yields, decodes)

    def _apply(self, share: Scheduled, repeats: int) -> bool:
        """Give a sequence what a step has brought; True when it has something to tell."""
        sequence, tokens, yields, _ = share
        request = sequence.request
        is_stale = sequence.stale > 0
        sequence.in_flight -= tokens
        if is_stale:
            sequence.stale -= tokens
        if request.is_done:
            return False  # aborted while the step was in flight
        if not is_stale:
            sequence.planned += repeats - 1
            request.computed += tokens + repeats - 1
        if not yields:
            return False
        request.produced += min(repeats, request.output_length)
        if self._asynchronous and not is_stale:
            sequence.awaited -= 1
            self._publish(sequence, sequence.planned - sequence.awaited)
        if request.produced == request.output_length:
            self._end(sequence, RequestState.FINISHED)
            return True
        return request.has_news()

    def _end(self, sequence: Sequence, state: RequestState) -> None:
        request = sequence.request
        self._cache.release(sequence.blocks)
        if request.state is RequestState.RUNNING:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        del self._sequences[request]
        request.state = state

    def _repeats(self, most: int) -> int:
        """How many decode steps can follow each other without news, a finish, or somebody to admit."""
        if self._asynchronous or self._has_news or self._waiting:
            return 1
        size = self._cache.page_size
        rooms = (len(sequence.blocks) * size - sequence.planned for sequence in self._running)
        tells = (sequence.request.steps_to_tell() for sequence in self._running)
        return max(1, min(most, *rooms, *tells))
