"""The tables of docs/wire.md are what `encode_batch` writes."""

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from kvevents.cli.selection import tier_of
from kvevents.events import BlockRemoved, BlockStored, KVEventBatch
from kvevents.hashing import HashScheme
from kvevents.wire import Dialect, encode_batch

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()

VALUES: dict[str, Any] = {
    "block_hashes": [101, 102],
    "parent_block_hash": 103,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": 104,
    "medium": "DISK",
    "cache_salt": "salt",
    "session_id": "session",
    "lora_name": "adapter",
    "extra_keys": [["key"], None],
    "group_idx": 105,
    "kv_cache_spec_kind": "full_attention",
    "kv_cache_spec_sliding_window": 106,
    "locality": "LOCAL",
    "ownership": "owner",
}
NEEDED = {"block_hashes", "parent_block_hash", "token_ids", "block_size"}
EVENTS: dict[str, type[BlockStored] | type[BlockRemoved]] = {"BlockStored": BlockStored, "BlockRemoved": BlockRemoved}


def table(event: str) -> dict[str, dict[str, str]]:
    """What the page says of an event: for each dialect the fields that have a place, and which."""
    section = PAGE.partition(f"### {event}\n")[2].partition("\n#")[0]
    head, _, *rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    dialects = [name.strip("`") for name in head[1:5]]
    return {
        dialect: {row[0].strip("`"): row[place] for row in rows if row[place] != "-"}
        for place, dialect in enumerate(dialects, 1)
    }


def written(event: str, dialect: Dialect, fields: set[str]) -> dict[str, int]:
    """Where `encode_batch` puts these fields, counted from 1 after the type."""
    given = {name: VALUES[name] for name in fields}
    kind = EVENTS[event]
    payload = encode_batch(KVEventBatch(0.0, [kind(**given)]), dialect=dialect)
    (wire,) = msgspec.msgpack.decode(payload)[1]
    if isinstance(wire, dict):
        return {name: place for place, name in enumerate(wire) if name != "type"}
    return {name: wire.index(value) for name, value in given.items()}


@pytest.mark.parametrize("dialect", get_args(Dialect))
@pytest.mark.parametrize("event", EVENTS)
def test_fields_stand_where_the_page_says(event: str, dialect: Dialect) -> None:
    said = table(event)[dialect]
    places = {name: int(place.strip("()")) for name, place in said.items()}
    assert written(event, dialect, set(said)) == places


@pytest.mark.parametrize("dialect", get_args(Dialect))
@pytest.mark.parametrize("event", EVENTS)
def test_fields_in_brackets_are_left_out_and_no_others(event: str, dialect: Dialect) -> None:
    said = table(event)[dialect]
    kind = EVENTS[event]
    given = {name: VALUES[name] for name in NEEDED & set(said)}
    (wire,) = msgspec.msgpack.decode(encode_batch(KVEventBatch(0.0, [kind(**given)]), dialect=dialect))[1]
    always = [name for name, place in said.items() if not place.startswith("(")]
    assert len(wire) - 1 == len(always)
    if isinstance(wire, dict):
        assert set(wire) - {"type"} == set(always)


@pytest.mark.parametrize("event", EVENTS)
def test_every_field_and_dialect_has_its_place_in_the_table(event: str) -> None:
    said = table(event)
    assert set(said) == set(get_args(Dialect))
    fields = {field.name for field in msgspec.structs.fields(EVENTS[event])} - {"unknown_fields"}
    assert set().union(*said.values()) == fields


def test_tiers_are_those_of_the_index() -> None:
    section = PAGE.partition("### Tiers\n")[2].partition("\n#")[0]
    tiers = [{tier_of(name) for name in re.findall(r"`(\w+)`", part)} for part in section.split(" one")[:3]]
    assert tiers == [{"CPU_PINNED"}, {"DISK"}, {"EXTERNAL"}]


def test_every_scheme_has_its_line() -> None:
    section = PAGE.partition("## Hashing\n")[2]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert named == set(get_args(HashScheme))
