"""Sessions of a coding agent as requests, from the form that kv-cache-tester records: one session a line."""

import itertools
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvevents.simulation.traces import Trace, TraceRequest

APART_S = 30.0
"""Sessions have no start time of their own: one begins so long after the one before."""

BLOCK = 64
"""Tokens of a block."""


def read_agent_trace(path: Path, *, sessions: int, span_s: float, window: int) -> Trace:
    """The requests of the first sessions, those of their sub-agents too, in order of arrival.

    Each agent has one request at a time. Ids of blocks are a session's own, so sessions share nothing. What follows a
    prompt's last whole block is its own.

    Args:
        path: JSON lines, compressed with xz.
        sessions: how many, in the file's order.
        span_s: nothing that comes later.
        window: nothing longer, prompt and answer together, in tokens.
    """
    found: list[tuple[float, int, str, dict[str, Any]]] = []
    with lzma.open(path) as file:
        for number, session in enumerate(map(json.loads, itertools.islice(file, sessions))):
            found += [(number * APART_S + at_s, number, agent, request) for at_s, agent, request in _requests(session)]
    fitting = [one for one in found if one[0] <= span_s and one[3]["out"] and one[3]["in"] + one[3]["out"] <= window]
    requests = []
    for line, (at_s, number, agent, request) in enumerate(sorted(fitting, key=lambda one: one[:2]), 1):
        ids = [number << 32 | block for block in request["hash_ids"]]
        blocks = tuple([*ids, 1 << 60 | line][: -(-request["in"] // BLOCK)])
        requests.append(TraceRequest(line, at_s, request["in"], request["out"], blocks, BLOCK, f"{number} {agent}"))
    return Trace(path, requests, [])


def _requests(session: dict[str, Any]) -> Iterator[tuple[float, str, dict[str, Any]]]:
    for request in session["requests"]:
        if request["type"] == "subagent":
            for nested in request["requests"]:
                yield request["t"] + nested["t"], request["agent_id"], nested
        else:
            yield request["t"], "main", request
