"""A body says to the router what it says to an engine, which reads it with `json.loads`."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvevents._core.prompt import MAX_ID, Request, read_request
from kvevents.errors import WireError

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
IDS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30) | st.lists(
    st.integers(0, MAX_ID), min_size=1, max_size=5
)
PROMPTS = st.one_of(
    st.fixed_dictionaries({"prompt": IDS | TEXTS | st.lists(IDS, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"text": TEXTS}),
    st.fixed_dictionaries({"input_ids": IDS}),
    st.fixed_dictionaries({"messages": st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), min_size=1, max_size=3)}),
)
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "model": TEXTS,
        "cache_salt": TEXTS | st.none(),
        "lora_name": TEXTS,
        "stream": st.booleans(),
        "max_tokens": st.integers(0, 2**40),
        "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}) | st.none(),
        "user": TEXTS,
    },
)
OTHERS = st.dictionaries(TEXTS.map("x".__add__), VALUES, max_size=3)
LAYOUTS = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")]),
        "indent": st.none() | st.just(1),
    }
)


def said_of(fields: dict[str, Any]) -> dict[str, Any]:
    """What a request says, by `json.loads`."""
    prompt = fields.get("prompt", fields.get("input_ids"))
    nested = prompt[0] if isinstance(prompt, list) and isinstance(prompt[0], list) else prompt
    text = fields.get("text", prompt if isinstance(prompt, str) else None)
    return {
        "ids": nested if isinstance(nested, list) else [],
        "text": text or None,
        "model": fields.get("model"),
        "cache_salt": fields.get("cache_salt") or None,
        "lora_name": fields.get("lora_name") or None,
        "is_stream": fields.get("stream", False),
        "wants_usage": bool((fields.get("stream_options") or {}).get("include_usage")),
        "max_tokens": fields.get("max_tokens"),
        "session": fields.get("user") or None,
    }


def said_by(request: Request) -> dict[str, Any]:
    """What the core read."""
    named = {name: getattr(request, name) for name in said_of({}) if name not in {"ids", "text"}}
    return {**named, "ids": request.tokens.tolist(), "text": request.text or None}


def is_taken(body: bytes) -> bool:
    """Whether the core takes a body."""
    try:
        read_request(body)
    except (WireError, ValueError):
        return False
    return True


@given(prompt=PROMPTS, facts=FACTS, others=OTHERS, layout=LAYOUTS, order=st.randoms(use_true_random=False))
def test_a_request_is_what_json_loads_says(
    prompt: dict[str, Any], facts: dict[str, Any], others: dict[str, Any], layout: dict[str, Any], order: Any
) -> None:
    members = [*others.items(), *facts.items(), *prompt.items()]
    order.shuffle(members)
    body = json.dumps(dict(members), **layout).encode()
    request = read_request(body)
    assert said_by(request) == said_of(json.loads(body))
    if "messages" in prompt:
        chat = request.chat()
        assert chat is not None
        assert repr(json.loads(chat)["messages"]) == repr(prompt["messages"])  # NaN is not equal to itself


@given(
    fields=st.dictionaries(TEXTS, VALUES, max_size=4),
    layout=LAYOUTS,
    place=st.floats(0, 1),
    length=st.integers(0, 3),
    piece=st.sampled_from(["", '"', "\\", "\\u", "\\ud800", "[", "]", "{", "}", ",", ":", "-", ".", "0", "1e", "NaN"]),
)
def test_what_is_no_json_to_one_is_none_to_the_other(
    fields: dict[str, Any], layout: dict[str, Any], place: float, length: int, piece: str
) -> None:
    text = json.dumps({f"x{name}": value for name, value in fields.items()}, **layout)
    at = round(place * len(text))
    body = (text[:at] + piece + text[at + length :]).encode()
    try:
        is_json = isinstance(json.loads(body), dict)
    except ValueError:
        is_json = False
    assert is_taken(body) is is_json


@given(first=IDS, last=IDS, name=st.sampled_from(["prompt", "pr\\u006fmpt"]))
def test_the_last_of_equal_keys_wins(first: list[int], last: list[int], name: str) -> None:
    body = f'{{"prompt": {first}, "model": "a", "{name}": {last}, "model": "b"}}'.encode()
    request = read_request(body)
    assert request.tokens.tolist() == json.loads(body)["prompt"] == last
    assert request.model == "b"
