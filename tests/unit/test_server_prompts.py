"""From a body to token ids."""

from array import array

import pytest

from kvevents.engine.tokenizer import ByteTokenizer
from kvevents.server.errors import HttpError
from kvevents.server.prompts import PromptReader

READER = PromptReader()


@pytest.mark.parametrize("field", ["token_ids", "prompt"])
def test_ids_are_taken_as_they_are(field: str) -> None:
    prompt = READER.read(b'{"%s": [0, 4294967295, 7], "temperature": 1e3}' % field.encode())
    assert prompt.tokens == array("q", [0, 4294967295, 7])
    assert prompt.unread is None


@pytest.mark.parametrize("field", ["text", "prompt"])
def test_text_becomes_the_ids_that_the_engine_would_use(field: str) -> None:
    prompt = READER.read(b'{"%s": "h\\u00e9"}' % field.encode())
    assert prompt.tokens == ByteTokenizer().encode("hé")


def test_what_tells_blocks_apart_comes_along() -> None:
    prompt = READER.read(b'{"text": "a", "model": "m", "lora_path": "l", "cache_salt": "s"}')
    assert (prompt.model, prompt.lora_name, prompt.cache_salt) == ("m", "l", "s")
    assert READER.read(b'{"text": "a", "lora_name": "n"}').lora_name == "n"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "not_json"),
        (b"{", "not_json"),
        (b"{}x", "not_json"),
        (b'{"deep": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "not_json"),
        (b'{"text": "\xff"}', "not_json"),
        (b"[]", "bad_request"),
        (b"{}", "bad_request"),
        (b'{"prompt": [-1]}', "bad_request"),
        (b'{"prompt": [1.5]}', "bad_request"),
        (b'{"prompt": ["a", "b"]}', "bad_request"),
        (b'{"messages": []}', "bad_request"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "bad_request"),
        (b'{"text": "a", "model": 3}', "bad_request"),
    ],
)
def test_bodies_without_a_prompt_are_refused_or_left_to_the_engine(body: bytes, code: str) -> None:
    if code == "not_json":
        with pytest.raises(HttpError) as caught:
            READER.read(body)
        assert (caught.value.status, caught.value.code) == (400, code)
    else:
        prompt = READER.read(body)
        assert len(prompt.tokens) == 0
        assert prompt.unread
