"""Traces: every request in order, equal ids as equal tokens, every broken line named."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvevents.errors import ConfigError
from kvevents.simulation.traces import VOCABULARY, BrokenLine, TraceRequest, block_tokens, iter_trace, read_trace

BUNDLED = Path(__file__).parents[2] / "data" / "mooncake_conversation_first1000.jsonl"


def row(**fields: Any) -> dict[str, Any]:
    return {"timestamp": 9, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]} | fields


def write(path: Path, lines: list[object]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_the_bundled_trace_is_read_whole_and_in_order() -> None:
    trace = read_trace(BUNDLED)
    rows = [json.loads(line) for line in BUNDLED.read_text().splitlines()]
    assert trace.broken == []
    assert [list(request.hash_ids) for request in trace.requests] == [row["hash_ids"] for row in rows]
    assert trace.span_s == 330.0
    assert trace.prompt_tokens == 13_732_944
    assert trace.output_tokens == 349_357
    assert [request.line for request in trace.requests] == list(range(1, 1001))


def test_a_limit_keeps_the_first_requests() -> None:
    trace = read_trace(BUNDLED, limit=50)
    assert len(trace.requests) == 50
    assert trace.requests == read_trace(BUNDLED).requests[:50]


def test_arrivals_count_from_the_first_request(tmp_path: Path) -> None:
    path = write(tmp_path / "t", [row(timestamp=5000), row(timestamp=5000), row(timestamp=6500.5)])
    assert [request.arrival_s for request in read_trace(path).requests] == [0.0, 0.0, 1.5005]


def test_a_prompt_has_the_length_the_trace_says() -> None:
    for request in read_trace(BUNDLED, limit=40).requests:
        tokens = request.tokens()
        assert len(tokens) == request.input_length
        assert tokens.itemsize == 4
        assert 0 <= min(tokens) <= max(tokens) < VOCABULARY


def test_prompts_share_exactly_the_blocks_that_the_trace_shares() -> None:
    one = TraceRequest(1, 0.0, 1300, 1, (0, 7, 8)).tokens()
    two = TraceRequest(2, 0.0, 1500, 1, (0, 7, 9)).tokens()
    longer = TraceRequest(3, 0.0, 1536, 1, (0, 7, 8)).tokens()
    assert one[:1024] == two[:1024]
    assert one[1024:1300] != two[1024:1300]
    assert longer[:1300] == one


def test_the_tokens_of_a_block_never_change() -> None:
    tokens = memoryview(block_tokens(46)).cast("I").tolist()
    assert len(tokens) == 512
    assert tokens[:4] == [19565, 25664, 21666, 13187]
    assert block_tokens((1 << 64) - 1) != block_tokens(46)


def test_block_tokens_use_the_whole_vocabulary() -> None:
    seen = {token for block in range(400) for token in memoryview(block_tokens(block)).cast("I").tolist()}
    assert len(seen) > 0.99 * VOCABULARY


BROKEN: dict[str, tuple[object, str]] = {
    "not JSON": ("{nonsense", "malformed"),
    "cut off": ('{"timestamp": 9, "input_length": 700, "outp', "malformed"),
    "not an object": ("[1, 2, 3]", "Expected `object`"),
    "a missing field": ({"timestamp": 9, "input_length": 700, "output_length": 5}, "hash_ids"),
    "an unknown field": (row(delay=12), "unknown field `delay`"),
    "a text for a number": (row(input_length="700"), "input_length"),
    "a fraction of a token": (row(input_length=700.5), "input_length"),
    "an output longer than any": (row(output_length=10**12), "output_length"),
    "no prompt": (row(input_length=0, hash_ids=[]), "input_length"),
    "no output": (row(output_length=0), "output_length"),
    "a negative time": (row(timestamp=-1), "timestamp"),
    "too few blocks": (row(hash_ids=[1]), "expected 2 hash_ids for 700 tokens, got 1"),
    "too many blocks": (row(hash_ids=[1, 2, 3]), "expected 2 hash_ids for 700 tokens, got 3"),
    "a negative id": (row(hash_ids=[1, -2]), "hash_ids"),
    "an id beyond 64 bits": (row(hash_ids=[1, 1 << 64]), "64 bits"),
    "a time that moves back": (row(timestamp=8), "expected a timestamp of 9 ms or later, got 8"),
    "bytes that are no text": ("\udcff\udcfe", "malformed"),
    "nesting without end": ("[" * 100_000, ""),
}


@pytest.mark.parametrize(("line", "reason"), list(BROKEN.values()), ids=list(BROKEN))
def test_a_broken_line_is_named_and_skipped(tmp_path: Path, line: object, reason: str) -> None:
    good = json.dumps(row()).encode()
    bad = (line if isinstance(line, str) else json.dumps(line)).encode(errors="surrogateescape")
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join([*[good] * 60, bad, *[good] * 60]))
    trace = read_trace(path)
    assert len(trace.requests) == 120
    (broken,) = trace.broken
    assert broken.line == 61
    assert reason in broken.reason


def test_more_than_one_percent_broken_stops_with_the_line_numbers(tmp_path: Path) -> None:
    lines: list[object] = [row() for _ in range(200)]
    lines[9] = lines[99] = "?"
    assert [item.line for item in read_trace(write(tmp_path / "t", lines)).broken] == [10, 100]
    lines[150] = row(hash_ids=[])
    with pytest.raises(ConfigError, match=r"3 of 200 lines are broken.*lines 10, 100, 151 \(line 10: .*line 151: "):
        read_trace(write(tmp_path / "t", lines), limit=5)


def test_blank_lines_and_a_missing_last_newline_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(f"\n{json.dumps(row())}\n  \n{json.dumps(row())}")
    assert [item.line for item in iter_trace(path)] == [2, 4]
    assert not any(isinstance(item, BrokenLine) for item in iter_trace(path))


@pytest.mark.parametrize("content", [None, "", "\n\n"])
def test_a_trace_without_requests_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"trace\.jsonl: expected"):
        read_trace(path)


def test_a_folder_is_not_a_trace(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a readable file"):
        read_trace(tmp_path)
