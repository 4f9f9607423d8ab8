"""What the proxy tells of a request as it goes. These classes listen to nothing: every call is a no-op."""

from collections.abc import Sequence
from typing import Literal, Protocol, Self, TypeAlias

from kvevents.routing import Decision

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Names and values."""

Step: TypeAlias = Literal["tokenize", "queue", "select"]


class Reported(Protocol):
    """What an engine reported of one reply."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...


class StepTrace:
    """A step that has begun; as a context manager it ends with the block."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def end(self) -> None:
        """The step is over; only the first call counts."""


class AttemptTrace:
    """A request on its way to one worker and back."""

    __slots__ = ()

    @property
    def headers(self) -> Headers:
        """To send to the worker in place of the client's of the same name; empty: the client's go on unchanged."""
        return ()

    def first_byte(self) -> None:
        """The worker has begun to answer."""

    def ended(self, outcome: str, usage: Reported | None = None) -> None:
        """The attempt is over, as the ledger is told; only the first call counts."""


class RequestTrace:
    """One request from its head to its end. As a context manager it ends with the block, if nothing ended it before.

    It is not thread-safe.
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.ended(None)

    def prompt(self, *, tokens: int, source: str, model: str | None = None) -> None:
        """The prompt was read: its length in tokens and where these came from; never its content."""

    def step(self, _name: Step, /) -> StepTrace:
        """A step begins; some come twice, some not at all."""
        return NO_STEP

    def attempt(self, _decision: Decision, /) -> AttemptTrace:
        """A worker was chosen and gets the request now."""
        return NO_ATTEMPT

    def ended(self, status: int | None, *, code: str | None = None) -> None:
        """The request is over; only the first call counts.

        Args:
            status: of the reply; None: the client left before it had one.
            code: of the error that it was answered with.
        """


NO_STEP = StepTrace()
NO_ATTEMPT = AttemptTrace()
NO_TRACE = RequestTrace()
