"""Request traces: when each request came, how long it was, and which blocks of its prompt others share.

Read is the Mooncake form (FAST '25): JSONL, one request a line, arrival in ms, the prompt as one id for each 512
tokens, the last block usually partial. Equal ids mean equal blocks with equal prefixes.
"""

import hashlib
import itertools
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from kvevents.errors import ConfigError

BUNDLED = Path(__file__).parents[3] / "data" / "mooncake_conversation_first1000.jsonl"
"""330 s of chat traffic; part of the repository, not of the package."""

TRACE_BLOCK = 512
"""Tokens that one id of a Mooncake trace stands for."""

VOCABULARY = 125 * 256
"""Token ids of prompts are below this."""

MOST_TOKENS = 10_000_000
"""A prompt or an output that is longer than any context window is a broken line."""

BROKEN_SHARE = 0.01
"""A trace with a larger share of broken lines is refused."""

_HIGH_BYTES = bytes(byte % 125 for byte in range(256))
_LISTED_REASONS = 3
_LISTED_LINES = 50


class TraceRequest(msgspec.Struct, frozen=True):
    """One request of a trace.

    Attributes:
        line: where it stands in the file, from 1.
        arrival_s: seconds since the trace's first request.
        input_length: tokens of the prompt.
        output_length: tokens to generate.
        hash_ids: one id for each block of the prompt, the last block may be partial.
        block: tokens of a block.
        session: of requests with the same one, each is sent when the one before it has ended, if that is later than its
            arrival; None: it depends on nothing.
    """

    line: int
    arrival_s: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    block: int = TRACE_BLOCK
    session: str | None = None

    def tokens(self) -> "array[int]":
        """The prompt: token ids that follow from the block ids alone, so that shared prefixes stay shared."""
        prompt: array[int] = array("I", b"".join([block_tokens(block, self.block) for block in self.hash_ids]))
        del prompt[self.input_length :]
        return prompt


class BrokenLine(msgspec.Struct, frozen=True):
    """A line that was skipped, and why."""

    line: int
    reason: str


class Trace(msgspec.Struct, frozen=True):
    """Requests in the order of the file, with what could not be read.

    Attributes:
        path: the file.
        requests: at most as many as were asked for.
        broken: every broken line of the whole file.
    """

    path: Path
    requests: list[TraceRequest]
    broken: list[BrokenLine]

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.requests[-1].arrival_s

    @property
    def prompt_tokens(self) -> int:
        return sum(request.input_length for request in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(request.output_length for request in self.requests)


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
    output_length: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
    hash_ids: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]


def read_trace(path: Path, *, limit: int | None = None) -> Trace:
    """Read a Mooncake trace.

    The whole file is checked whatever the limit, so that the same file is always judged the same.

    Args:
        path: the file, plain JSONL.
        limit: keep this many requests from its start; None keeps all.

    Raises:
        ConfigError: the file cannot be read, holds no request, or more than 1 % of its lines are broken.
    """
    requests: list[TraceRequest] = []
    broken: list[BrokenLine] = []
    lines = 0
    for item in iter_trace(path):
        lines += 1
        if isinstance(item, BrokenLine):
            broken.append(item)
        elif limit is None or len(requests) < limit:
            requests.append(item)
    if len(broken) > BROKEN_SHARE * lines:
        raise ConfigError(_refusal(path, broken, lines))
    if not requests:
        raise ConfigError(f"trace {path}: expected at least one request, got {lines} lines, limit {limit}")
    return Trace(path, requests, broken)


def bundled_trace() -> Path:
    """The trace that commands take when none is named.

    Raises:
        ConfigError: it is not there.
    """
    if not BUNDLED.exists():
        raise ConfigError(f"--trace: expected a file, got none; the default is part of the repository ({BUNDLED})")
    return BUNDLED


def iter_trace(path: Path) -> Iterator[TraceRequest | BrokenLine]:
    """Each line of a Mooncake trace, read when asked for; blank lines are nothing.

    Raises:
        ConfigError: the file cannot be read.
    """
    decoder = msgspec.json.Decoder(_Row)
    first_ms = last_ms = None
    try:
        with path.open("rb") as file:
            for line, text in enumerate(file, start=1):
                if not text.strip():
                    continue
                try:
                    row = _checked(decoder.decode(text), last_ms)
                except (ValueError, RecursionError) as error:
                    yield BrokenLine(line, str(error))
                    continue
                last_ms = row.timestamp
                first_ms = last_ms if first_ms is None else first_ms
                arrival_s = (row.timestamp - first_ms) / 1000
                yield TraceRequest(line, arrival_s, row.input_length, row.output_length, row.hash_ids)
    except OSError as error:
        raise ConfigError(f"trace {path}: expected a readable file, got: {error.strerror or error}") from error


def block_tokens(hash_id: int, count: int = TRACE_BLOCK) -> bytes:
    """The token ids of a trace block, as native uint32: the same for the same id, everywhere and always."""
    digest = hashlib.shake_128(hash_id.to_bytes(8, "little")).digest(2 * count)
    tokens = bytearray(4 * count)
    low, high = (0, 1) if sys.byteorder == "little" else (3, 2)
    tokens[low::4] = digest[:count]
    tokens[high::4] = digest[count:].translate(_HIGH_BYTES)
    return bytes(tokens)


def _checked(row: _Row, last_ms: float | None) -> _Row:
    blocks = -(-row.input_length // TRACE_BLOCK)
    if len(row.hash_ids) != blocks:
        raise ValueError(f"expected {blocks} hash_ids for {row.input_length} tokens, got {len(row.hash_ids)}")
    if max(row.hash_ids) >= 1 << 64:
        raise ValueError(f"expected hash_ids of 64 bits, got {max(row.hash_ids)}")
    if last_ms is not None and row.timestamp < last_ms:
        raise ValueError(f"expected a timestamp of {last_ms:.0f} ms or later, got {row.timestamp:.0f}")
    return row


def _refusal(path: Path, broken: list[BrokenLine], lines: int) -> str:
    numbers = ", ".join(str(item.line) for item in itertools.islice(broken, _LISTED_LINES))
    if len(broken) > _LISTED_LINES:
        numbers += f" and {len(broken) - _LISTED_LINES} more"
    reasons = "; ".join(f"line {item.line}: {item.reason}" for item in broken[:_LISTED_REASONS])
    return f"trace {path}: {len(broken)} of {lines} lines are broken, more than 1 %: lines {numbers} ({reasons})"
