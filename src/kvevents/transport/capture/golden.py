"""Recorded streams of other origin, read as captures: JSON lines, one object each.

Two forms. Scripts of SGLang caches: a head, then operations, of which `take_events` carries the batch in `msgpack_hex`.
ZMQ frames of vLLM engines: `config`, then `{"dir": "pub" | "replay", "frames": [hex, ...], "t": seconds}` beside the
requests and answers that caused them. And one file of frames without times, `{"live": [...], "replay_from_1": [...]}`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kvevents.errors import WireError
from kvevents.transport.capture.layout import DamagedError
from kvevents.transport.capture.records import CapturedBatch, CapturedRefusal, CaptureRecord, CaptureSource
from kvevents.transport.frames import Message, read_live, read_reply


def golden_records(name: str, lines: Iterable[bytes]) -> Iterator[CaptureRecord]:
    """The records of a stream whose file has that name.

    Raises:
        DamagedError: a line that is not JSON, or of a form that is not known.
    """
    numbered = ((number, _object(number, line)) for number, line in enumerate(lines, start=1) if line.strip())
    head = next(numbered, (0, {}))[1]
    if "config" in head:
        yield from _vllm(name, head["config"], (line for _, line in numbered))
    elif "live" in head:
        yield from _frames(name, head)
    elif "scenario" in head:
        yield from _script(name, head, (line for _, line in numbered))
    else:
        raise DamagedError("expected a head with config, scenario or live")


def _object(number: int, line: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"line {number}: expected a JSON object: {error}") from error


def _script(name: str, head: dict[str, Any], steps: Iterable[dict[str, Any]]) -> Iterator[CaptureRecord]:
    source = CaptureSource(name, block_size=head.get("page_size"))
    sequence = 0
    for step in steps:
        if step.get("msgpack_hex"):
            yield CapturedBatch(0.0, source, sequence, bytes.fromhex(step["msgpack_hex"]))
            sequence += 1


def _vllm(name: str, config: dict[str, Any], lines: Iterable[dict[str, Any]]) -> Iterator[CaptureRecord]:
    size = config.get("block_size")
    ranks = config.get("data_parallel") or 1
    topic = config.get("topic") or ""
    sources: dict[int | None, CaptureSource] = {}
    for line in lines:
        kind = line.get("dir")
        if kind not in {"pub", "replay"}:
            continue
        rank = line.get("endpoint_rank", 0 if ranks > 1 else None)
        source = sources.get(rank)
        if source is None:
            source = sources[rank] = CaptureSource(
                name,
                rank,
                topic,
                size if isinstance(size, int) else None,
                has_replay=bool(config.get("replay_endpoint")),
            )
        frames = [bytes.fromhex(frame) for frame in line["frames"]]
        time = float(line.get("t", 0.0))
        try:
            message = read_live(frames) if kind == "pub" else read_reply(frames)
        except WireError as error:
            yield CapturedRefusal(time, source, None, sum(map(len, frames)), error.reason, error.offset)
            continue
        if message is not None:
            yield _batch(time, source, message, replayed=kind == "replay")


def _frames(name: str, head: dict[str, Any]) -> Iterator[CaptureRecord]:
    source = CaptureSource(name, has_replay=True)
    for frames in head["live"]:
        yield _batch(0.0, source, read_live([bytes.fromhex(frame) for frame in frames]), replayed=False)
    for frames in head.get("replay_from_1", ()):
        message = read_reply([bytes.fromhex(frame) for frame in frames])
        if message is not None:
            yield _batch(0.0, source, message, replayed=True)


def _batch(time: float, source: CaptureSource, message: Message, *, replayed: bool) -> CapturedBatch:
    return CapturedBatch(time, source, message.sequence, message.payload, message.topic, replayed)
