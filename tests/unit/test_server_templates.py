"""From chats to what a model's template makes of them, and to token ids."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvevents.server.prompts.encoder import Encoder, RenderingError
from kvevents.server.prompts.process import Task
from kvevents.server.prompts.settings import TokenizerSettings
from kvevents.server.prompts.template import ChatTemplate, RefusedError
from model_files import SIMULATED, trained_tokenizer, write_model

CHATML = """{%- if tools %}
<|im_start|>system
{%- if messages[0].role == 'system' %}
{{ messages[0].content }}
{%- endif %}
# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{%- elif messages[0]['role'] == 'system' %}
{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<call>' + call.function.name + ':' + (call.function.arguments | tojson) + '</call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

STRICT = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate') }}
{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}{% else %}
{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{% endif %}
{% endfor %}"""

PARTS = """{% for message in messages %}{{ message.role }}:{% if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}{% if part.type == 'image' %}<|image|>{% else %}{{ part.text }}
{%- endif %}{% endfor %}{% endif %};{% endfor %}"""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return trained_tokenizer()


def rendered(template: str, messages: list[Any], *, content: Any = "auto", tools: Any = None, **context: Any) -> str:
    made = ChatTemplate({"default": template}, {"bos_token": "<s>", "eos_token": "</s>"}, content=content)
    return made.render(messages, tools, context, max_bytes=1000)


def encoder(directory: Path, *, content: Any = "auto", engine: Any = "vllm", override: str | None = None) -> Encoder:
    settings = TokenizerSettings(
        models="m", path=str(directory), content=content, engine=engine, chat_template=override
    )
    return Encoder(Task(settings, 1.0, 1000, 2**32))


def said(encoded: Any, tokenizer: Any) -> str:
    ids, _ = encoded
    text: str = tokenizer.decode(list(ids), skip_special_tokens=False)
    return text


def test_the_system_message_is_merged_or_made_up() -> None:
    user = {"role": "user", "content": "Hi"}
    assert rendered(CHATML, [user], add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    system = {"role": "system", "content": "Be kind."}
    assert rendered(CHATML, [system, user], enable_thinking=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        "<think>\n\n</think>\n\n"
    )


def test_tokens_loops_and_refusals_are_those_that_templates_expect() -> None:
    chat = [{"role": "user", "content": " a "}, {"role": "assistant", "content": "b"}]
    assert rendered(STRICT, chat) == "<s>[INST] a [/INST]b</s>"
    with pytest.raises(RefusedError, match="roles must alternate"):
        rendered(STRICT, chat[1:])
    assert rendered("{{ {'a': 'é<'} | tojson(indent=1) }}", []) == '{\n "a": "é<"\n}'
    assert len(rendered("{{ strftime_now('%Y') }}", [])) == 4


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ undefined_function() }}",
        "{{ 1 / 0 }}",
        "{% for i in range(2000) %}x{% endfor %}",
    ],
)
def test_a_template_gets_nowhere(template: str) -> None:
    with pytest.raises(RefusedError):
        rendered(template, [])


def test_a_template_that_is_none_is_said_when_it_is_loaded(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="chat template, line 1"):
        encoder(write_model(tmp_path, tokenizer, "{% for %}"))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json"):
        encoder(tmp_path)


@pytest.mark.parametrize(
    ("template", "content"),
    [
        (SIMULATED, "string"),
        (CHATML, "string"),
        (PARTS, "parts"),
        (
            "{% for m in messages %}{% set c = m['content'] %}{% for p in c %}{{ p.text }}{% endfor %}{% endfor %}",
            "parts",
        ),
        ("{% for m in messages %}{% for p in m['content'] | list %}{{ p }}{% endfor %}{% endfor %}", "parts"),
    ],
)
def test_how_content_is_wanted_is_seen_in_the_template(template: str, content: str) -> None:
    assert ChatTemplate({"default": template}, {}).content == content


@pytest.mark.parametrize(
    ("engine", "string", "parts"), [("vllm", "user:a\nb;", "user:ab;"), ("sglang", "user:a b;", "user:ab;")]
)
def test_lists_of_text_come_as_each_engine_hands_them_over(
    tmp_path: Path, tokenizer: Any, engine: str, string: str, parts: str
) -> None:
    directory = write_model(tmp_path, tokenizer, PARTS)
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    for form, expected in (("string", string), ("parts", parts)):
        assert said(encoder(directory, content=form, engine=engine).chat(body), tokenizer) == expected


def test_tools_and_their_calls_are_shaped_as_each_engine_does(tmp_path: Path, tokenizer: Any) -> None:
    directory = write_model(tmp_path, tokenizer, CHATML)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"x": 1}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"y": "é"}'}}
    chat = {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "ok"},
        ],
        "tools": [tool],
    }
    texts = {
        engine: said(encoder(directory, engine=engine).chat(json.dumps(chat).encode()), tokenizer)
        for engine in ("vllm", "sglang")
    }
    assert (
        '{"type": "function", "function": {"name": "f", "description": null, "parameters": {"x": 1}}}' in texts["vllm"]
    )
    assert '{"description": null, "name": "f", "parameters": {"x": 1}, "strict": false}' in texts["sglang"]
    for text in texts.values():
        assert '<|im_start|>assistant\n<call>f:{"y": "é"}</call><|im_end|>' in text
    without = json.dumps({**chat, "tool_choice": "none"}).encode()
    assert "# Tools" not in said(encoder(directory, engine="sglang").chat(without), tokenizer)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_message_is_continued_where_it_ends(tmp_path: Path, tokenizer: Any, engine: str) -> None:
    directory = write_model(tmp_path, tokenizer, SIMULATED)
    messages = [{"role": "user", "content": "Say"}, {"role": "assistant", "content": "It is"}]
    body = json.dumps({"messages": messages, "continue_final_message": True, "add_generation_prompt": False}).encode()
    assert said(encoder(directory, engine=engine).chat(body), tokenizer) == "<|user|>\nSay\n<|assistant|>\nIt is"


def test_ids_are_the_tokenizers_own(tmp_path: Path, tokenizer: Any) -> None:
    made = encoder(write_model(tmp_path, tokenizer, CHATML))
    text = "You are a helpful assistant in Paris, é"
    assert made.text(text, add_special_tokens=True)[0] == tokenizer.token_to_id("<s>")
    plain = list(made.text(text, add_special_tokens=False))
    assert list(made.text(text, add_special_tokens=True))[1:] == plain
    assert len(plain) > 4, "truncation is the engine's business"
    assert tokenizer.decode(plain) == text
    ids, _ = made.chat(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode())
    assert ids[0] == tokenizer.token_to_id("<|im_start|>"), "special tokens in a template are tokens"


def test_an_image_stands_where_it_is_and_has_an_identity(tmp_path: Path, tokenizer: Any) -> None:
    made = encoder(write_model(tmp_path, tokenizer, PARTS))

    def chat(*images: dict[str, Any]) -> tuple[int, list[tuple[int, str]]]:
        content = [{"type": "text", "text": "Look: "}, *images, {"type": "text", "text": "there"}]
        ids, media = made.chat(json.dumps({"messages": [{"role": "user", "content": content}]}).encode())
        return len(ids), media

    def image(url: str, **more: Any) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url}, **more}

    before = len(made.text("user:Look: ", add_special_tokens=False))
    length, media = chat(image("http://a"), image("http://b"))
    assert [position for position, _ in media] == [before, before]
    assert length == before + len(made.text("there;", add_special_tokens=False))
    assert media[0][1] != media[1][1]
    assert chat(image("http://a"))[1] == [media[0]] or chat(image("http://a"))[1] == [media[1]]
    assert chat(image("http://a", uuid="mine"))[1] == [(before, "mine")]


def test_what_is_not_simulated_is_said(tmp_path: Path, tokenizer: Any) -> None:
    made = encoder(write_model(tmp_path, tokenizer, CHATML))
    user = {"role": "user", "content": "a"}
    for body, reason in (
        ({"messages": [user], "chat_template": "x"}, "unreadable"),
        ({"messages": [3]}, "unreadable"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "unreadable"),
        ({"messages": [{"role": "user", "content": "x" * 2000}]}, "template"),
        ({"messages": []}, "template"),
    ):
        with pytest.raises(RenderingError) as caught:
            made.chat(json.dumps(body).encode())
        assert caught.value.reason == reason
    with pytest.raises(RenderingError, match="no chat template"):
        encoder(write_model(tmp_path / "plain", tokenizer, None)).chat(json.dumps({"messages": [user]}).encode())


def test_templates_are_found_wherever_models_keep_them(tmp_path: Path, tokenizer: Any) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "a"}], "tools": [{"function": {"name": "f"}}]}).encode()
    several = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    directory = write_model(tmp_path, tokenizer, None, config={"chat_template": several})
    assert said(encoder(directory).chat(body), tokenizer) == "T"
    (directory / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert said(encoder(directory).chat(body), tokenizer) == "J"
    (directory / "chat_template.jinja").write_text("F")
    assert said(encoder(directory).chat(body), tokenizer) == "F"
    (tmp_path / "own.jinja").write_text("O")
    assert said(encoder(directory, override=str(tmp_path / "own.jinja")).chat(body), tokenizer) == "O"
