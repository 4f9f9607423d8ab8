"""One request on its way through the engine."""

import enum
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class RequestState(enum.Enum):
    """Where a request is."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()
    ABORTED = enum.auto()


def _nobody() -> None:
    """Nobody waits for this request."""


@dataclass(slots=True, eq=False)
class Request:
    """A prompt, the tokens that will follow it, and how far the engine is with it.

    Attributes:
        id: the name clients see.
        tokens: the prompt followed by all outputs to come (int64).
        prompt_length: how many of them are the prompt.
        extra_key: separates cache trees.
        cache_salt: the tenant's salt.
        session_id: attribution in events.
        priority: of its blocks, for the eviction policy `priority`.
        dp_rank: the rank that runs it.
        stream_every: tell about every so many outputs, the first at once; None: only about the end.
        on_update: called when there is something to tell.
        state: where it is.
        cached: prompt tokens found in the cache at its first admission; None before.
        computed: tokens whose KV is there.
        produced: outputs made so far.
        told: outputs there were when `on_update` was last called.
        retractions: how often it had to give its memory back.
        node: what it holds locked in the cache's tree; None while it waits.
        shared: tokens of it that lie in the tree, locked.
        allocated: tokens of memory it has, `shared` included; whole pages.
        window_start: tokens whose window KV it has given back, as they have left the window; whole pages.
        has_state: whether it has a state of its own, that of the last token it has computed.
        branch: tokens that others have cached but that it could not go on from; a state is wanted there.
    """

    id: str
    tokens: "array[int]"
    prompt_length: int
    extra_key: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    priority: int = 0
    dp_rank: int = 0
    stream_every: int | None = None
    on_update: Callable[[], None] = _nobody
    state: RequestState = RequestState.WAITING
    cached: int | None = None
    computed: int = 0
    produced: int = 0
    told: int = 0
    retractions: int = 0
    node: Any = None
    shared: int = 0
    allocated: int = 0
    window_start: int = 0
    has_state: bool = False
    branch: int = 0
    view: "memoryview[int]" = field(init=False)

    def __post_init__(self) -> None:
        self.view = memoryview(self.tokens)

    @property
    def output_length(self) -> int:
        """Outputs it will have in the end."""
        return len(self.tokens) - self.prompt_length

    @property
    def known(self) -> int:
        """Tokens known so far: the prompt and the outputs made."""
        return self.prompt_length + self.produced

    @property
    def is_decoding(self) -> bool:
        """Whether all but its last output is computed, so that a step gives it one more."""
        return self.produced > 0 and self.computed == self.known - 1

    @property
    def is_done(self) -> bool:
        """Whether it will not change any more."""
        return self.state in (RequestState.FINISHED, RequestState.ABORTED)

    @property
    def outputs(self) -> "memoryview[int]":
        """The outputs made so far."""
        return self.view[self.prompt_length : self.known]

    def steps_to_tell(self) -> int:
        """Outputs until there is something to tell, at least 1."""
        left = self.output_length - self.produced
        if self.stream_every is None:
            return max(left, 1)
        return max(min(left, self.told + self.stream_every - self.produced), 1)

    def has_news(self) -> bool:
        """Whether outputs are due to be told; if so they count as told."""
        if self.stream_every is None:
            return False
        if self.produced == 1 or self.produced - self.told >= self.stream_every:
            self.told = self.produced
            return True
        return False
