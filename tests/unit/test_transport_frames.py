"""Messages of the live and the replay socket, in every form that engines send."""

from typing import Any

import msgspec
import pytest

from goldens import archive, capture, capture_names
from kvevents.errors import WireError
from kvevents.transport.frames import END_SEQUENCE, Message, read_live, read_reply, read_request, sequence_frame


def test_live_frames_of_a_recorded_sglang_engine_are_read() -> None:
    recorded: dict[str, Any] = msgspec.json.decode(archive("sglang")["sglang_zmq_frames.json"])
    live = [read_live([bytes.fromhex(frame) for frame in frames]) for frames in recorded["live"]]
    assert [(message.sequence, message.topic) for message in live] == [(n, b"kv") for n in range(5)]
    *replies, end = [read_reply([bytes.fromhex(frame) for frame in frames]) for frames in recorded["replay_from_1"]]
    assert replies == live[2:]
    assert end is None


@pytest.mark.parametrize("name", capture_names())
def test_replies_of_recorded_vllm_engines_repeat_their_live_frames(name: str) -> None:
    lines = [
        (line["dir"], [bytes.fromhex(frame) for frame in line["frames"]]) for line in capture(name) if "dir" in line
    ]
    live = {read_live(frames)[:2] for direction, frames in lines if direction == "pub"}
    replies = [read_reply(frames) for direction, frames in lines if direction == "replay"]
    assert replies[-1] is None
    assert {reply[:2] for reply in replies if reply is not None} <= live or not live


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([b"", sequence_frame(7), b"x"], Message(7, b"x", None)),
        ([b"", b"kv", sequence_frame(7), b"x"], Message(7, b"x", b"kv")),
        ([b"", END_SEQUENCE, b""], None),
        ([b"", b"", END_SEQUENCE, b""], None),
    ],
)
def test_reply_is_read_with_and_without_topic(frames: list[bytes], expected: Message | None) -> None:
    assert read_reply(frames) == expected


@pytest.mark.parametrize("frames", [[], [b""], [b"", b"kv"], [b"x", sequence_frame(1), b""], [b"", b"kv", b"1", b"x"]])
def test_what_is_no_reply_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(WireError, match="expected"):
        read_reply(frames)


@pytest.mark.parametrize("frames", [[], [b"kv", sequence_frame(1)], [b"kv", b"1", b"x"], [b"kv", END_SEQUENCE, b""]])
def test_what_is_no_live_message_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(WireError, match="expected"):
        read_live(frames)


@pytest.mark.parametrize(
    ("frames", "start"),
    [
        ([b"id", b"", sequence_frame(9)], 9),
        ([b"id", sequence_frame(9)], None),
        ([b"id", b"", sequence_frame(9), b""], None),
        ([b"id", b"x", sequence_frame(9)], None),
        ([b"id", b"", b"9"], None),
    ],
)
def test_request_is_three_frames_at_the_router(frames: list[bytes], start: int | None) -> None:
    assert read_request(frames) == start
