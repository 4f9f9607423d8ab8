"""Continuous batching: which tokens the next step computes, for whom, and what follows from it."""

import math
import sys
from collections import deque
from typing import NamedTuple

from kvevents.engine.memory import KVMemory
from kvevents.engine.request import Request, RequestState
from kvevents.engine.timing import TimingModel
from kvevents.errors import CapacityError

OUTPUT_RESERVE = 0.7
"""Share of the outputs still to come that admission keeps room for; for a retracted request it is all of them."""


class QueueFullError(CapacityError):
    """More requests wait already than may."""


class Chunk(NamedTuple):
    """A part of one request's prompt."""

    request: Request
    tokens: int


class Step(NamedTuple):
    """One forward pass, or several equal ones in a row."""

    chunks: list[Chunk]
    """Prompts to go on with; the request's memory is allocated."""
    decoding: list[Request]
    """Requests that get one more token in each repeat."""
    seconds: float
    """Duration of one repeat."""
    repeats: int
    """How often it can be run before anything but a decode is due; 1 with chunks."""


class Progress(NamedTuple):
    """What a step has done."""

    prefilled: int
    """Prompt tokens computed."""
    decode_steps: int
    """Repeats in which requests decoded."""
    updated: list[Request]
    """Requests that have something to tell; `on_update` was not called yet."""


class Scheduler:
    """Waiting queue and running batch of one rank. Pure: no clock, no sockets, no events.

    `plan` says what the next step computes and takes the memory for it, the caller lets the step's time pass,
    `commit` applies it. Each step gives every decoding request a token and spends up to `chunk_size` tokens on
    prompts, first come first served. Where memory runs short the youngest request goes back to the queue's head.
    Not thread-safe.

    Args:
        memory: the rank's memory.
        timing: how long steps take.
        chunk_size: prompt tokens a step may compute.
        max_running: requests that may run at once.
        max_waiting: requests that may wait.
    """

    def __init__(
        self,
        memory: KVMemory,
        timing: TimingModel,
        *,
        chunk_size: int,
        max_running: int,
        max_waiting: int = sys.maxsize,
    ) -> None:
        self.memory = memory
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.retractions = 0
        self._timing = timing
        self._chunk_size = chunk_size
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._aborted: list[Request] = []
        self._blocked = False  # the queue's head found no room; True until memory is given back

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not self.running

    @property
    def capacity(self) -> int:
        """Tokens that fit into the rank's memory."""
        return self.memory.capacity

    @property
    def used(self) -> int:
        """Tokens of memory that are in use or cached."""
        return self.memory.capacity - self.memory.free

    @property
    def pending_tokens(self) -> int:
        """Tokens still to compute for all requests, those in the cache not yet subtracted for waiting ones."""
        return sum(len(request.tokens) - request.computed for request in (*self.waiting, *self.running))

    def check_room(self, prompt_length: int, output_length: int) -> None:
        """Whether a request can be queued.

        Raises:
            CapacityError: it could not run even alone.
            QueueFullError: too many are waiting; later there may be room.
        """
        need = self.memory.pages_up(prompt_length + max(output_length - 1, 0))
        check_size(prompt_length, output_length, need=need, capacity=self.capacity)
        check_queue(len(self.waiting), self._max_waiting)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            CapacityError, QueueFullError: as `check_room`.
        """
        self.check_room(request.prompt_length, request.output_length)
        request.state = RequestState.WAITING
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Drop a request at the next `plan` or `drop_aborted`; a step under way still computes for it."""
        self._aborted.append(request)

    def drop_aborted(self) -> None:
        """Take the memory of aborted requests back; not between `plan` and `commit`."""
        for request in self._aborted:
            if request.state is RequestState.WAITING:
                self.waiting.remove(request)
            elif request.state is RequestState.RUNNING:
                self.running.remove(request)
                self.memory.release(request, keep=True)
            else:
                continue
            request.state = RequestState.ABORTED
            self._blocked = False
        if self._aborted:
            self._aborted.clear()
            self.memory.poll()

    def plan(self, *, most: int = 1) -> Step | None:
        """The next step, with memory taken for it; None when nothing is to be done.

        Args:
            most: repeats of a pure decode step that the caller would like to run in one go.
        """
        self.drop_aborted()
        retractions = self.retractions
        self._grow_decoding()
        chunks = self._continue_prefill()
        if self.retractions == retractions:
            self._admit(chunks)
        decoding = [request for request in self.running if request.is_decoding]
        if chunks:
            started = {chunk.request for chunk in chunks}
            decoding = [request for request in decoding if request not in started]
        elif not decoding:
            return None
        loaded = self.memory.take_loaded()
        seconds = self._timing.step_s(
            prefill_tokens=sum(chunk.tokens for chunk in chunks),
            decoding=len(decoding),
            loaded_tokens=loaded.to_device,
            fetched_tokens=loaded.to_host,
        )
        return Step(chunks, decoding, seconds, 1 if chunks else self._repeats(decoding, most))

    def commit(self, step: Step, *, repeats: int = 1) -> Progress:
        """Apply a step that has run.

        Args:
            step: what `plan` returned last.
            repeats: how often it has run, at most `step.repeats`.
        """
        assert 1 <= repeats <= step.repeats
        updated = []
        for request, tokens in step.chunks:
            request.computed += tokens
            self.memory.store(request)
            if request.computed == request.known and self._produce(request, min(1, request.output_length)):
                updated.append(request)
        for request in step.decoding:
            request.computed += repeats
            self.memory.trim(request)
            if self._produce(request, repeats):
                updated.append(request)
        if any(request.state is RequestState.FINISHED for request in updated):
            self.running = [request for request in self.running if request.state is RequestState.RUNNING]
        self.memory.poll()
        return Progress(
            prefilled=sum(chunk.tokens for chunk in step.chunks),
            decode_steps=repeats if step.decoding else 0,
            updated=updated,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError where requests or memory are in an impossible state."""
        self.memory.check_integrity(self.running)
        assert all(request.state is RequestState.RUNNING and request.node is not None for request in self.running)
        assert all(request.state is RequestState.WAITING and request.node is None for request in self.waiting)
        assert len(self.running) <= self._max_running
        assert sum(not request.is_decoding for request in self.running) <= 1

    def _produce(self, request: Request, outputs: int) -> bool:
        """Give a request outputs, finish it after its last one; True when there is something to tell."""
        request.produced += outputs
        if request.produced == request.output_length:
            self.memory.release(request, keep=True)
            request.state = RequestState.FINISHED
            self._blocked = False
            return True
        return request.has_news()

    def _grow_decoding(self) -> None:
        """Room for one more token of each decoding request, oldest first."""
        for request in list(self.running):
            if request.state is RequestState.RUNNING and request.is_decoding:
                self._grow_or_retract(request, 1)

    def _continue_prefill(self) -> list[Chunk]:
        """The next chunk of the prompt that is under way; there is at most one such."""
        partial = next((request for request in self.running if not request.is_decoding), None)
        if partial is None:
            return []
        tokens = min(self._chunk_size, partial.known - partial.computed)
        return [Chunk(partial, tokens)] if self._grow_or_retract(partial, tokens) else []

    def _grow_or_retract(self, request: Request, tokens: int) -> bool:
        """Make room by retracting younger requests; False when it was the request's own turn."""
        while not self.memory.grow(request, tokens):
            victim = self.running.pop()
            assert self.running, "a request that fits alone finds no room alone"
            self.memory.release(victim, keep=False)
            victim.state = RequestState.WAITING
            victim.retractions += 1
            self.retractions += 1
            self._blocked = False
            self.waiting.appendleft(victim)
            if victim is request:
                return False
        return True

    def _admit(self, chunks: list[Chunk]) -> None:
        """Start waiting requests while there are budget, places and memory."""
        budget = self._chunk_size - sum(chunk.tokens for chunk in chunks)
        while budget > 0 and self.waiting and not self._blocked and len(self.running) < self._max_running:
            request = self.waiting[0]
            length = self.memory.attach(request)
            tokens = min(budget, request.known - length)
            if (self.running and self._demand(request) > self.memory.available) or not self.memory.grow(
                request, tokens
            ):
                self.memory.release(request, keep=False)
                assert self.running, "a request that fits alone finds no room alone"
                self._blocked = True
                return
            if request.cached is None:
                request.cached = length
            self.waiting.popleft()
            request.state = RequestState.RUNNING
            self.running.append(request)
            chunks.append(Chunk(request, tokens))
            budget -= tokens

    def _demand(self, request: Request) -> int:
        """Tokens that the running requests and this one will still ask for, as far as admission cares."""
        reserve = 1.0 if request.retractions else OUTPUT_RESERVE
        tokens = sum(
            max(other.known - other.allocated, 0) + reserve * (other.output_length - other.produced)
            for other in (*self.running, request)
        )
        return math.ceil(tokens) + self.memory.page_size * len(self.running)

    def _repeats(self, decoding: list[Request], most: int) -> int:
        """How many decode steps can follow each other without a finish, something to tell or an eviction."""
        steps = min(most, *(request.steps_to_tell() for request in decoding))
        while steps > 1 and not self.memory.fits(decoding, steps):
            steps //= 2
        if steps > 1:
            for request in decoding:
                self.memory.grow(request, steps)
        return max(steps, 1)


def check_size(prompt_length: int, output_length: int, *, need: int, capacity: int) -> None:
    """Raise CapacityError for a request that could not run even alone.

    Args:
        prompt_length: its prompt, in tokens.
        output_length: its outputs.
        need: tokens of memory that it needs in the end.
        capacity: tokens of memory that there are.
    """
    if need > capacity:
        raise CapacityError(
            f"a prompt of {prompt_length} tokens with {output_length} tokens of output needs "
            f"{need} tokens of KV cache, but a rank has {capacity}; shorten it or raise the capacity",
            requested=need,
            available=capacity,
        )


def check_queue(waiting: int, most: int) -> None:
    """Raise QueueFullError where as many requests wait as may."""
    if waiting >= most:
        raise QueueFullError(
            f"the queue is full: {waiting} requests are waiting; try again later", requested=1, available=0
        )
