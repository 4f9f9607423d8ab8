"""A trace sent through a router's HTTP door, at the trace's own pace."""

import asyncio
import itertools
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import msgspec

from kvevents.simulation.traces import TraceRequest

CONNECT_S = 10.0

SILENCE_S = 300.0
"""A stream that says nothing for this long has failed; in trace time where that is longer."""

_TAIL_BYTES = 8192
_ERROR_CHARACTERS = 200


class Outcome(msgspec.Struct):
    """What became of one request.

    Attributes:
        line: its line in the trace.
        prompt_tokens: length of its prompt.
        held_tokens: tokens of the prompt that the best worker would have found cached when it was sent.
        sent_late_s: real seconds between its moment in the trace and its sending.
        worker: who answered, by the router's header; None when nobody did.
        expected_tokens: prompt tokens that the router expected to be found cached, where it was asked.
        cached_tokens: prompt tokens found cached, by the engine's usage.
        first_token_s: real seconds from sending to the first token; None when there was none.
        output_tokens: tokens generated, by the engine's usage.
        error: what went wrong; None when nothing did.
    """

    line: int
    prompt_tokens: int
    held_tokens: int = 0
    sent_late_s: float = 0.0
    worker: str | None = None
    expected_tokens: int = 0
    cached_tokens: int = 0
    first_token_s: float | None = None
    output_tokens: int = 0
    error: str | None = None


class _PromptTokensDetails(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptTokensDetails | None = None


class _Chunk(msgspec.Struct):
    usage: _Usage | None = None
    error: Any = None


class StreamFailedError(Exception):
    """An answer that is not a complete stream of tokens."""


async def replay(
    url: str,
    requests: Sequence[TraceRequest],
    *,
    speed: float,
    held: Callable[["array[int]"], int],
    on_end: Callable[[Outcome], None],
) -> list[Outcome]:
    """Send each request at its moment and follow its stream to the end; a request that fails is an outcome too.

    Requests leave in the order of the trace: one begins only when the one before it has been written out.

    Args:
        url: the router's base URL.
        requests: in order of arrival.
        speed: trace seconds per real second.
        held: tokens of a prompt that some worker holds at this moment; asked just before sending.
        on_end: called with each outcome as it is known.

    Returns:
        The outcomes, in the order of the requests.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S / min(speed, 1.0))
    trace_config = aiohttp.TraceConfig()
    trace_config.on_request_chunk_sent.append(_mark_as_sent)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(url, connector=connector, timeout=timeout, trace_configs=[trace_config]) as session,
        asyncio.TaskGroup() as group,
    ):
        start = time.monotonic()
        tasks = []
        for arrival_s, together in itertools.groupby(requests, key=lambda request: request.arrival_s):
            bucket = [_Prepared(request) for request in together]
            due = start + arrival_s / speed
            if (wait_s := due - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            for prepared in bucket:
                outcome = prepared.outcome
                outcome.held_tokens = held(prepared.tokens)
                outcome.sent_late_s = time.monotonic() - due
                tasks.append(group.create_task(_follow(session, prepared, on_end)))
                await prepared.sent.wait()
    return [task.result() for task in tasks]


class _Prepared:
    """A request that only waits for its moment."""

    def __init__(self, request: TraceRequest) -> None:
        self.outcome = Outcome(request.line, request.input_length)
        self.tokens = request.tokens()
        self.body = msgspec.json.encode(
            {
                "prompt": self.tokens.tolist(),
                "max_tokens": request.output_length,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        self.sent = asyncio.Event()


async def _mark_as_sent(_session: aiohttp.ClientSession, context: Any, _params: object) -> None:
    context.trace_request_ctx.set()


async def _follow(session: aiohttp.ClientSession, request: _Prepared, on_end: Callable[[Outcome], None]) -> Outcome:
    outcome, sent = request.outcome, request.sent
    start = time.monotonic()
    headers = {"content-type": "application/json"}
    try:
        async with session.post(
            "/v1/completions", data=request.body, headers=headers, trace_request_ctx=sent
        ) as response:
            outcome.worker = response.headers.get("x-kvevents-worker")
            await _check_status(response)
            tail = b""
            async for data in response.content.iter_any():
                if outcome.first_token_s is None:
                    outcome.first_token_s = time.monotonic() - start
                tail = (tail + data)[-_TAIL_BYTES:]
            usage = _usage(tail)
        outcome.cached_tokens = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
        outcome.output_tokens = usage.completion_tokens
    except (aiohttp.ClientError, TimeoutError, StreamFailedError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    finally:
        sent.set()
    on_end(outcome)
    return outcome


async def _check_status(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        said = (await response.text())[:_ERROR_CHARACTERS]
        raise StreamFailedError(f"status {response.status}: {said}")


def _usage(tail: bytes) -> _Usage:
    """The usage in the last chunk of a stream of server-sent events.

    Raises:
        StreamFailedError: the stream ended with an error, or early.
    """
    *_, last, done = [b"", b"", *(line for line in tail.splitlines() if line.startswith(b"data:"))]
    if done.removeprefix(b"data:").strip() != b"[DONE]":
        said = done.decode(errors="replace")[:_ERROR_CHARACTERS]
        raise StreamFailedError(f"expected a stream that ends with [DONE], got: {said}")
    try:
        usage = msgspec.json.decode(last.removeprefix(b"data:"), type=_Chunk).usage
    except msgspec.DecodeError as error:
        raise StreamFailedError(f"last chunk: {error}") from error
    if usage is None:
        raise StreamFailedError("expected the usage in the last chunk, got none")
    return usage
