"""From a body to what routing needs of it."""

import json
from array import array
from typing import Any

import pytest

from kvevents._core.prompt import MAX_ID, STAND_IN, read_request
from kvevents.engine.tokenizer import ByteTokenizer
from kvevents.errors import ConfigError
from kvevents.index import PrefixIndex
from kvevents.server.errors import HttpError
from kvevents.server.prompts import PromptReader, PromptSettings, TokenizerSettings

SIM = "kvevents-sim"


def reader(*served: str, **settings: Any) -> PromptReader:
    return PromptReader(PromptSettings(**settings), block_size=lambda: 4, served=lambda: [set(served)])


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize("field", ["token_ids", "prompt", "input_ids", "prompt_token_ids"])
def test_ids_are_taken_as_they_are(field: str) -> None:
    prompt = reader().read(b'{"%s": [0, 4294967295, 7], "temperature": 1e3}' % field.encode())
    assert list(prompt.tokens) == [0, 4294967295, 7]
    assert prompt.tokens.format == "I"
    assert (prompt.source, prompt.unread, prompt.needs_tokenizing) == ("ids", None, False)
    assert list(reader().read(b'{"prompt": [[%d], [1]]}' % MAX_ID).tokens) == [MAX_ID]


def test_ids_go_into_the_index_as_they_come() -> None:
    index = PrefixIndex(4)
    prompt = reader().read(body(prompt=list(range(64))))
    assert list(index.match(prompt.tokens)) == []


@pytest.mark.parametrize("field", ["text", "prompt"])
def test_text_becomes_the_ids_that_the_simulated_engine_uses(field: str) -> None:
    prompt = reader().read(b'{"%s": "h\\u00e9"}' % field.encode())
    assert list(prompt.tokens) == list(ByteTokenizer().encode("hé"))
    assert (prompt.source, prompt.unread, prompt.approximate) == ("text", None, False)


def test_chats_become_the_ids_that_the_simulated_engine_uses() -> None:
    prompt = reader().read(body(messages=[{"role": "user", "content": "hi"}]))
    assert bytes(prompt.tokens.tolist()) == b"<|user|>\nhi\n<|assistant|>\n"
    assert prompt.source == "chat"


def test_what_routing_needs_comes_along() -> None:
    prompt = reader().read(
        body(
            prompt="a",
            model="m",
            lora_path="l",
            cache_salt="s",
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=5,
            user="u",
            prompt_cache_key="k",
        )
    )
    assert (prompt.model, prompt.lora_name, prompt.cache_salt) == ("m", "l", "s")
    assert (prompt.is_stream, prompt.wants_usage, prompt.max_tokens, prompt.session) == (True, True, 5, "k")
    assert reader().read(body(text="a", lora_name="n")).lora_name == "n"
    assert reader().read(body(input=["a", "b"])).source == "embedding"
    assert reader().read(body(input=["a", "b"])).prompts == 2


def test_what_other_endpoints_render_their_own_way_is_stood_in_for() -> None:
    items = [{"role": "user", "content": "Hello there"}]
    for prompt in (
        reader(SIM).read(body(input=items, model=SIM), "/v1/responses"),
        reader(SIM).read(body(input="Hello there", model=SIM), "/v1/responses"),
        reader(SIM).read(body(input=items, model=SIM), "/v1/embeddings"),
        reader(SIM).read(body(messages=items, system="Be kind.", model=SIM), "/v1/messages"),
    ):
        assert prompt.approximate
        assert len(prompt.tokens) > 2
    assert reader(SIM).read(body(input="Hello", model=SIM), "/v1/embeddings").approximate is False


def test_an_adapter_that_workers_list_is_known_by_its_name() -> None:
    served = PromptReader(served=lambda: [{SIM, "sql"}], base_of={"sql": SIM}.get)
    prompt = served.read(body(text="a", model="sql"))
    assert (prompt.model, prompt.lora_name, prompt.approximate) == ("sql", "sql", False)


def test_an_adapter_may_be_asked_for_in_every_way_that_engines_have() -> None:
    served = reader("base", "sql", adapters={"sql": "base"})
    named = [served.read(body(text="a", **fields)) for fields in ({"model": "sql"}, {"model": "base:sql"})]
    assert [(prompt.model, prompt.lora_name) for prompt in named] == [("sql", "sql"), ("base", "sql")]
    plain = served.read(body(text="a", model="other:sql"))
    assert (plain.model, plain.lora_name) == ("other:sql", None)


@pytest.mark.parametrize(
    ("given", "code", "offset"),
    [
        (b"", "not_json", 0),
        (b"{", "not_json", 1),
        (b"{}x", "not_json", 2),
        (b'{"deep": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "not_json", 520),
        (b'{"text": "\xff"}', "not_json", 10),
        (b"[]", "bad_request", 0),
        (b'{"prompt": [-1]}', "bad_request", 12),
        (b'{"prompt": [9223372036854775808]}', "bad_request", 12),
        (b'{"prompt": [1.5]}', "bad_request", 12),
        (b'{"prompt": [1, "a"]}', "bad_request", 15),
    ],
)
def test_what_no_engine_could_take_is_refused_with_its_place(given: bytes, code: str, offset: int) -> None:
    served = reader()
    with pytest.raises(HttpError, match=rf"at byte {offset}\b") as caught:
        served.read(given)
    assert (caught.value.status, caught.value.code, served.counters.refused) == (400, code, 1)


@pytest.mark.parametrize(
    "given",
    [
        b"{}",
        b'{"text": "a", "prompt": "a"}',
        b'{"prompt": [["a"]]}',
        b'{"messages": []}',
        b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        b'{"messages": [3]}',
        b'{"prompt": ""}',
    ],
)
def test_what_only_an_engine_may_know_has_no_tokens_and_a_reason(given: bytes) -> None:
    prompt = reader().read(given)
    assert len(prompt.tokens) == 0
    assert prompt.unread
    assert prompt.approximate is False


def test_fields_of_wrong_types_are_named() -> None:
    assert reader().read(body(text="a", model=3)).ignored == [("model", "a string", 23)]


def test_without_a_tokenizer_the_text_stands_in() -> None:
    served = reader("llama")
    chat = [{"role": "system", "content": "You are kind. " * 20}, {"role": "user", "content": "Hello"}]
    first = served.read(body(model="llama", messages=chat))
    longer = served.read(body(model="llama", messages=[*chat, {"role": "assistant", "content": "Hello to you"}]))
    other = served.read(body(model="llama", messages=[{"role": "user", "content": "Hello"}]))
    assert (first.approximate, first.needs_tokenizing) == (True, False)
    assert first.unread is not None
    assert "[[prompts.tokenizer]]" in first.unread
    shared = len(first.tokens) - 2
    assert first.tokens[:shared] == longer.tokens[:shared]
    assert first.tokens[:8] != other.tokens[:8]
    assert min(first.tokens) >= STAND_IN
    assert served.counters.approximate == {"no_tokenizer": 3}
    assert len(first.tokens) == pytest.approx(len(body(m=chat)) / 4, rel=0.1)


def test_an_image_is_told_apart_and_not_carried_along() -> None:
    def chat(image: str) -> Any:
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image * 4000}"}}
        content = [{"type": "text", "text": "What is this?" * 9}, part]
        return reader("vision").read(body(model="vision", messages=[{"role": "user", "content": content}])).tokens

    assert len(chat("A")) < 100
    assert chat("A") == chat("A")
    assert chat("A") != chat("B")
    assert chat("A")[:20] == chat("B")[:20]


def test_what_is_attached_to_ids_enters_the_first_block() -> None:
    keys = [reader().read(body(input_ids=[1, 2], image_data=image)).extra_keys for image in ("a", "b", None)]
    assert keys[2] is None
    assert keys[0] != keys[1]
    assert keys[0] is not None
    ((identity, offset),) = keys[0][0] or []
    assert (str(identity).startswith("xxh3:"), offset) == (True, 0)


def test_the_model_of_a_fleet_that_has_one_is_meant_by_any_name() -> None:
    assert reader(SIM).read(body(text="a", model="default")).approximate is False
    assert reader("llama").read(body(text="a")).approximate is True
    assert reader(SIM, "llama").read(body(text="a", model="default")).approximate is True


def test_a_tokenizer_that_counts_otherwise_is_set_aside_and_looked_at_now_and_then() -> None:
    served = reader(SIM)
    text = body(text="abc", model=SIM)
    assert served.models()[0].verdict == "unknown"
    served.observe(served.read(text), 3)
    assert served.models()[0].verdict == "agrees"
    for _ in range(3):
        served.observe(served.read(text), 4)
    state = served.models()[0]
    assert (state.verdict, state.agreed, state.disagreed) == ("disagrees", 1, 3)
    assert state.example == "3 tokens here, 4 in the engine"
    prompts = [served.read(text) for _ in range(16)]
    assert [prompt.approximate for prompt in prompts].count(False) == 1
    assert served.counters.approximate["disagrees"] == 15
    for prompt in prompts * 16:  # only those that were tokenized say anything
        served.observe(prompt, 3)
    assert served.models()[0].verdict == "agrees"


def test_prompts_of_which_only_the_engine_knows_the_count_are_not_compared() -> None:
    served = reader(SIM)
    for given in (body(prompt=["a", "b"], model=SIM), body(prompt="a", image_data="x"), body(prompt=[1, 2])):
        served.observe(served.read(given), 99)
    assert served.models()[0].verdict == "unknown"


def test_a_large_body_is_read_beside_other_threads() -> None:
    ids = array("I", range(100_000))
    request = read_request(body(prompt=ids.tolist()))
    assert request.tokens == ids
    assert request.tokens.readonly


def test_the_simulated_engines_tokenizer_is_there_beside_others() -> None:
    mine = TokenizerSettings(models="mine", path="bytes")
    for tokenizers, states in ((), 1), ((mine,), 2), (PromptSettings().tokenizer, 1):
        served = reader(tokenizer=tokenizers)
        assert served.read(body(text="a", model="kvevents-sim-2")).approximate is False
        assert served.read(body(text="a")).approximate is False
        assert len(served.models()) == states
    assert reader(tokenizer=(mine, mine)).read(body(text="a")).approximate is True


def test_settings_say_what_is_wrong(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        TokenizerSettings(models="m", path=str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="chat_template"):
        TokenizerSettings(models="m", path=str(tmp_path), chat_template="nowhere")
    with pytest.raises(ConfigError, match="processes"):
        PromptSettings(processes=0)
    monkeypatch.setattr("kvevents.server.prompts.settings.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install 'kvevents\[tokenizers\]'"):
        TokenizerSettings(models="m", path=str(tmp_path))
