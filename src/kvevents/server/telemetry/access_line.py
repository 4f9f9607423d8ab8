"""The access log: one line per request."""

import logging
import time

from kvevents.routing import Decision
from kvevents.server.telemetry.trace import AttemptTrace, Reported, RequestTrace

access_log = logging.getLogger("kvevents.access")

REQUEST = "request"
"""What a line of this log is about: the message of its JSON form, and the first word of its text."""

Fact = str | int | float | bool | None


class AccessLine(RequestTrace):
    """Gathers the facts of a request and writes them when it ends; those of the last worker that was tried.

    Args:
        level: of the line.
        path: that was asked for, without its query.
        request_id: that the answer carries.
    """

    __slots__ = ("_facts", "_is_written", "_level", "_path", "_request_id", "_started")

    def __init__(self, level: int, path: str, request_id: str) -> None:
        self._level = level
        self._path = path
        self._request_id = request_id
        self._started = time.perf_counter()
        self._facts: dict[str, Fact] = {}
        self._is_written = False

    def prompt(self, *, tokens: int, source: str, model: str | None = None) -> None:
        self._facts |= {"prompt_tokens": tokens, "prompt_source": source, "model": model}

    def attempt(self, decision: Decision, /) -> "AttemptFacts":
        attempts = self._facts.get("attempts", 0)
        assert isinstance(attempts, int)
        self._facts |= {
            "attempts": attempts + 1,
            "worker": decision.worker,
            "dp_rank": decision.dp_rank,
            "policy": decision.policy,
            "expected_cached_tokens": decision.cached_tokens,
        }
        return AttemptFacts(self._facts, self._started)

    def ended(self, status: int | None, *, code: str | None = None) -> None:
        if self._is_written:
            return
        self._is_written = True
        facts = {
            "path": self._path,
            "status": status,
            "code": code,
            "duration_ms": _milliseconds_since(self._started),
            **self._facts,
        }
        said = " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
        access_log.log(self._level, f"{REQUEST} %s", said, extra={"facts": facts, "request_id": self._request_id})


class AttemptFacts(AttemptTrace):
    """Adds what one worker did to the line."""

    __slots__ = ("_facts", "_started")

    def __init__(self, facts: dict[str, Fact], started: float) -> None:
        self._facts = facts
        self._started = started

    def first_byte(self) -> None:
        self._facts["first_byte_ms"] = _milliseconds_since(self._started)

    def ended(self, outcome: str, usage: Reported | None = None) -> None:
        self._facts["outcome"] = outcome
        self._facts["reported_cached_tokens"] = None if usage is None else usage.cached_tokens


def _milliseconds_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)
