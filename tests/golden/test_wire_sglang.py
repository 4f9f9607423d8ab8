"""SGLang's own bytes: every recorded payload reads as its listed events and is written back byte for byte."""

from typing import Any

import msgspec
import pytest

from goldens import Script, archive, script_sources
from kvevents.events import KVCacheEvent
from kvevents.wire import decode_batch, encode_batch


def as_listed(event: KVCacheEvent) -> dict[str, Any]:
    """The event as the scripts list it, without the fields that are null."""
    values = {name: getattr(event, name) for name in event.__struct_fields__}
    listed = {"type": type(event).__name__} | {name: value for name, value in values.items() if value is not None}
    if listed.get("token_ids") and isinstance(listed["token_ids"][0], tuple):
        listed["token_ids"] = [list(pair) for pair in listed["token_ids"]]
    return listed


def without_nulls(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if value is not None}


def test_scripts_read_and_write_back(golden_script: Script) -> None:
    payloads = [step for step in golden_script.steps if "msgpack_hex" in step]
    for step in payloads:
        payload = bytes.fromhex(step["msgpack_hex"])
        batch = decode_batch(payload)
        assert [as_listed(event) for event in batch.events] == [without_nulls(event) for event in step["events"]]
        assert (batch.skipped, batch.unread_fields) == ([], 0)
        assert encode_batch(batch, dialect="sglang") == payload
        # The form before says the same.
        assert decode_batch(encode_batch(batch, dialect="sglang-array")) == batch


def test_the_recorded_scripts_have_payloads() -> None:
    sources = script_sources(None).values()
    assert len(sources) == 279
    assert all(b'"msgpack_hex":"' in source for source in sources)


@pytest.mark.parametrize("kind", ["live", "replay_from_1"])
def test_frames_read_and_write_back(kind: str) -> None:
    frames = msgspec.json.decode(archive("sglang")["sglang_zmq_frames.json"], type=dict[str, list[list[str]]])[kind]
    payloads = [bytes.fromhex(frame[-1]) for frame in frames if frame[-1]]
    assert payloads
    for payload in payloads:
        batch = decode_batch(payload)
        assert len(batch.events) == 1
        assert encode_batch(batch) == payload
