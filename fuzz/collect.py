"""Make `fuzz/corpus` anew: recorded payloads in which every shape of an event occurs.

    PYTHONPATH=tests .venv/bin/python fuzz/collect.py

A shape is what a reader has to tell apart: the kind of an event, its fields, and the forms of the values.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from goldens import capture_names, published_frames, script, script_sources

CORPUS = Path(__file__).parent / "corpus"
LONG = 1024
"""Bytes."""


def payloads() -> Iterator[tuple[str, bytes]]:
    for name in capture_names():
        for *_, payload in published_frames(name):
            yield f"vllm-{Path(name).stem}", payload
    for name in script_sources(None):
        for step in script(name, None).steps:
            if step["op"] == "take_events" and step["msgpack_hex"]:
                yield f"sglang-{Path(name).stem}", bytes.fromhex(step["msgpack_hex"])


def shape(value: Any, *, is_event: bool = False) -> Any:
    """The value without what may differ between events of one shape."""
    if isinstance(value, dict):
        return tuple((key, value[key] if key == "type" else shape(value[key])) for key in value)
    if isinstance(value, list) and is_event:
        return (value[0], *map(shape, value[1:]))
    if isinstance(value, list):
        return ("all", *sorted({repr(shape(item)) for item in value}))
    return type(value).__name__


def cost(payload: bytes) -> tuple[bool, int, int]:
    """The best payload is short and has many events."""
    return len(payload) > LONG, -len(msgspec.msgpack.decode(payload)[1]), len(payload)


def main() -> None:
    found: dict[str, tuple[str, bytes]] = {}
    for name, payload in payloads():
        for event in msgspec.msgpack.decode(payload)[1]:
            kind = repr(shape(event, is_event=True))
            if kind not in found or cost(payload) < cost(found[kind][1]):
                found[kind] = (name, payload)
    CORPUS.mkdir(exist_ok=True)
    for old in CORPUS.glob("*.msgpack"):
        old.unlink()
    for number, (name, payload) in enumerate(sorted(set(found.values()))):
        (CORPUS / f"{number:02}-{name}.msgpack").write_bytes(payload)


if __name__ == "__main__":
    main()
