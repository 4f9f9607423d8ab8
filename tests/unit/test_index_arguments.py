"""What is of the wrong type is refused in the words of the argument."""

from collections.abc import Callable
from typing import Any

import pytest

from kvevents.events import KVEventBatch
from kvevents.index import PrefixIndex, Prompt

EMPTY = KVEventBatch(0.0, [])

STRINGS: list[tuple[str, Callable[[Any], object]]] = [
    ("id", lambda value: PrefixIndex(4).add_worker(value)),
    ("id", lambda value: PrefixIndex(4).remove_worker(value)),
    ("id", lambda value: PrefixIndex(4).clear_worker(value)),
    ("worker_id", lambda value: PrefixIndex(4).set_state(value, None, "live")),
    ("state", lambda value: PrefixIndex(4).set_state("w", None, value)),
    ("worker_id", lambda value: PrefixIndex(4).holdings(value)),
    ("worker", lambda value: PrefixIndex(4).dump_events(value)),
]

NAMES: list[tuple[str, Callable[[Any], object]]] = [
    ("lora_name", lambda value: PrefixIndex(4).match([1], lora_name=value)),
    ("cache_salt", lambda value: PrefixIndex(4).match([1], cache_salt=value)),
    ("lora_name", lambda value: PrefixIndex(4).match_many([Prompt([1], lora_name=value)])),
    ("cache_salt", lambda value: PrefixIndex(4).match_many([Prompt([1], cache_salt=value)])),
]

NUMBERS: list[tuple[str, Callable[[Any], object]]] = [
    ("block_size", PrefixIndex),
    ("max_pending_blocks", lambda value: PrefixIndex(4, max_pending_blocks=value)),
    ("max_parked_bytes", lambda value: PrefixIndex(4, max_parked_bytes=value)),
    ("block_size", lambda value: PrefixIndex(4).add_worker("w", block_size=value)),
    ("seq", lambda value: PrefixIndex(4).apply("w", EMPTY, seq=value)),
    ("dp_rank", lambda value: PrefixIndex(4).apply("w", EMPTY, dp_rank=value)),
    ("dp_rank", lambda value: PrefixIndex(4).clear_worker("w", value)),
    ("lora_id", lambda value: PrefixIndex(4).match([1], lora_id=value)),
    ("lora_id", lambda value: PrefixIndex(4).match_many([Prompt([1], lora_id=value)])),
]


@pytest.mark.parametrize(("name", "call"), STRINGS + NAMES)
@pytest.mark.parametrize("value", [5, b"w", ["w"]])
def test_what_is_no_string(name: str, call: Callable[[Any], object], value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{name}: expected a string, got {type(value)}"):
        call(value)


@pytest.mark.parametrize(("name", "call"), STRINGS)
def test_nothing_where_a_string_is_needed(name: str, call: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=f"^{name}: expected a string, got <class 'NoneType'>"):
        call(None)


@pytest.mark.parametrize(("name", "call"), NUMBERS)
@pytest.mark.parametrize("value", ["5", 1.5, [5]])
def test_what_is_no_integer(name: str, call: Callable[[Any], object], value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{name}: expected an integer, got {type(value)}"):
        call(value)


@pytest.mark.parametrize("value", [None, 5, b"w"])
def test_a_worker_that_is_neither_a_handle_nor_an_id(value: Any) -> None:
    with pytest.raises(TypeError, match=f"^worker: expected a handle or an id, got {type(value)}"):
        PrefixIndex(4).apply(value, EMPTY)


@pytest.mark.parametrize("setting", ["max_pending_age_s", "max_parked_age_s"])
def test_an_age_that_is_none(setting: str) -> None:
    arguments: dict[str, Any] = {setting: "x"}
    with pytest.raises(TypeError, match=f"^{setting}: expected seconds, got <class 'str'>"):
        PrefixIndex(4, **arguments)


def test_prompts_that_are_none() -> None:
    prompts: Any = 5
    with pytest.raises(TypeError, match=r"^prompts: expected several prompts, got <class 'int'>"):
        PrefixIndex(4).match_many(prompts)


@pytest.mark.parametrize("extra_keys", [2**70, object(), [object()], [[2**70]]])
def test_extra_keys_that_msgpack_does_not_know(extra_keys: Any) -> None:
    with pytest.raises(TypeError, match=r"^extra_keys: expected a list with None or a list for each block"):
        PrefixIndex(4).match([1], extra_keys=extra_keys)
