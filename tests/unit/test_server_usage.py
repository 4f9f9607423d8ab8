"""Figures found in the bytes that pass."""

import json

import pytest

from kvevents.server.usage import TAIL_BYTES, UsageTail

USAGE = {"prompt_tokens": 300, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 256}}


def tail_of(data: bytes, *, size: int) -> UsageTail:
    tail = UsageTail()
    for start in range(0, len(data), size):
        tail.feed(data[start : start + size])
    return tail


@pytest.mark.parametrize("size", [1, 7, 100, 10**6])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_whole_reply(size: int, indent: int | None) -> None:
    body = json.dumps({"choices": [{"text": "x" * 9000}], "usage": USAGE}, indent=indent).encode()
    assert tail_of(body, size=size).usage() == (300, 256)


@pytest.mark.parametrize("size", [1, 64, 10**6])
def test_the_last_data_chunk_of_a_stream(size: int) -> None:
    early = {"prompt_tokens": 300, "prompt_tokens_details": {"cached_tokens": 0}}
    events = [{"choices": [{"text": "x"}], "usage": early}] * 200 + [{"choices": [], "usage": USAGE}]
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    assert tail_of(stream, size=size).usage() == (300, 256)


def test_a_reply_to_the_responses_endpoint() -> None:
    usage = {"input_tokens": 300, "input_tokens_details": {"cached_tokens": 256}, "output_tokens": 5}
    assert tail_of(json.dumps({"output": [], "usage": usage}).encode(), size=7).usage() == (300, 256)


def test_text_that_looks_like_usage_is_text() -> None:
    text = json.dumps({"usage": {"prompt_tokens": 9, "cached_tokens": 9}})
    assert tail_of(json.dumps({"choices": [{"text": text}]}).encode(), size=10**6).usage() is None
    body = json.dumps({"usage": USAGE, "choices": [{"text": text}]}).encode()
    assert tail_of(body, size=10**6).usage() == (300, 256)


@pytest.mark.parametrize(
    "body",
    [b"", b"data: [DONE]\n\n", b'{"usage": null}', b'{"usage": {"prompt_tokens": 3, "prompt_tokens_details": null}}'],
)
def test_replies_that_do_not_say(body: bytes) -> None:
    assert tail_of(body, size=10).usage() is None


@pytest.mark.parametrize(
    ("prompt", "cached"), [(2, 3), (2, 10**21), (10**21, 10**21), (10**21, 1), (-5, 0), (5, -1), (5.5, 1), ("5", 1)]
)
def test_figures_that_cannot_be_are_none(prompt: object, cached: object) -> None:
    usage = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}
    assert tail_of(json.dumps({"usage": usage}).encode(), size=10**6).usage() is None


def test_little_is_kept() -> None:
    tail = tail_of(b"x" * 1_000_000, size=1000)
    assert tail._size <= 4 * TAIL_BYTES
    assert tail.usage() is None
    assert tail._size == TAIL_BYTES


@pytest.mark.parametrize(
    ("data", "ends"),
    [(b"", True), (b"data: a\n\n", True), (b"data: a\r\n\r\n", True), (b"data: a", False), (b"a\n", False)],
)
def test_whether_an_event_is_complete(data: bytes, ends: bool) -> None:
    assert tail_of(data, size=3).ends_an_event() is ends


def test_the_prompts_length_is_read_though_nothing_is_said_of_the_cache() -> None:
    tail = UsageTail()
    tail.feed(
        b'data: {"choices":[],"usage":{"prompt_tokens":17,"completion_tokens":2,"prompt_tokens_details":null}}\n\n'
    )
    assert (tail.usage(), tail.prompt_tokens()) == (None, 17)
    assert UsageTail().prompt_tokens() is None
