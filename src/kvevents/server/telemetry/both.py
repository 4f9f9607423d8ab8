"""A request that is traced and logged."""

from kvevents.routing import Decision
from kvevents.server.telemetry.trace import AttemptTrace, Headers, Reported, RequestTrace, Step, StepTrace


class Both(RequestTrace):
    """Tells two listeners.

    Args:
        spans: whose steps and headers count.
        line: the other one.
    """

    __slots__ = ("_line", "_spans")

    def __init__(self, spans: RequestTrace, line: RequestTrace) -> None:
        self._spans = spans
        self._line = line

    def prompt(self, *, tokens: int, source: str, model: str | None = None) -> None:
        self._spans.prompt(tokens=tokens, source=source, model=model)
        self._line.prompt(tokens=tokens, source=source, model=model)

    def step(self, name: Step, /) -> StepTrace:
        return self._spans.step(name)

    def attempt(self, decision: Decision, /) -> AttemptTrace:
        return _BothAttempts(self._spans.attempt(decision), self._line.attempt(decision))

    def ended(self, status: int | None, *, code: str | None = None) -> None:
        self._line.ended(status, code=code)
        self._spans.ended(status, code=code)


class _BothAttempts(AttemptTrace):
    __slots__ = ("_line", "_spans")

    def __init__(self, spans: AttemptTrace, line: AttemptTrace) -> None:
        self._spans = spans
        self._line = line

    @property
    def headers(self) -> Headers:
        return self._spans.headers

    def first_byte(self) -> None:
        self._spans.first_byte()
        self._line.first_byte()

    def ended(self, outcome: str, usage: Reported | None = None) -> None:
        self._spans.ended(outcome, usage)
        self._line.ended(outcome, usage)
