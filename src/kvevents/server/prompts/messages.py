"""Messages and tools as an engine hands them to a chat template."""

import json
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from kvevents.server.prompts.template import ChatTemplate, RefusedError

TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
"""Types of parts that are text, and the field that has it."""

_VLLM_FIELDS = {"assistant": ("tool_calls", "reasoning", "reasoning_content"), "tool": ("tool_call_id",)}
"""What vLLM passes on of a message besides role, content and name."""

Mark = Callable[[dict[str, Any]], str]


class Conversation(NamedTuple):
    """A chat, ready for a template.

    Attributes:
        messages: normalised.
        tools: the forms to try, in order.
        context: what else the template is given.
        prefix: of the answer, put after what the template made.
        continues: whether the last message is to be continued.
    """

    messages: list[dict[str, Any]]
    tools: list[list[Any] | None]
    context: dict[str, Any]
    prefix: str | None
    continues: bool

    @classmethod
    def read(
        cls, request: dict[str, Any], *, engine: Literal["vllm", "sglang"], as_parts: bool, mark: Mark
    ) -> "Conversation":
        """Normalise a request.

        Args:
            request: the fields of a chat.
            engine: whose manner.
            as_parts: whether the template wants content as lists of parts.
            mark: gives the word that stands for an image.

        Raises:
            ValueError: something that is not simulated here.
            TypeError, KeyError: messages that no engine takes.
        """
        if request.get("chat_template") is not None:
            raise ValueError("the request brings a template of its own")
        normalise = _vllm_message if engine == "vllm" else _sglang_message
        messages = [_with_arguments(normalise(message, as_parts, mark)) for message in request["messages"]]
        tools = (_vllm_tools if engine == "vllm" else _sglang_tools)(request)
        continues = request.get("continue_final_message") is True
        prompts_answer = request.get("add_generation_prompt", True) is not False
        prefix = None
        if engine == "sglang" and continues and messages and messages[-1]["role"] == "assistant":
            prefix = _text_of(messages.pop().get("content"))
            continues, prompts_answer = False, True
        context = dict(request.get("chat_template_kwargs") or {})
        if request.get("reasoning_effort") is not None:
            context.setdefault("reasoning_effort", request["reasoning_effort"])
        context |= {"documents": request.get("documents")}
        context.setdefault("add_generation_prompt", prompts_answer)
        return cls(messages, tools, context, prefix, continues)

    def render(self, template: ChatTemplate, *, max_bytes: int) -> list[str]:
        """What the template makes of it, in pieces that are tokenized apart.

        Raises:
            RefusedError: by the template.
        """
        *first, last = self.tools
        for tools in first:
            try:
                return self._render(template, tools, max_bytes)
            except RefusedError:
                continue
        return self._render(template, last, max_bytes)

    def _render(self, template: ChatTemplate, tools: list[Any] | None, max_bytes: int) -> list[str]:
        text = template.render(self.messages, tools, self.context, max_bytes=max_bytes)
        if self.continues:
            text = _cut_after(text, _text_of(self.messages[-1].get("content")))
        return [text] if self.prefix is None else [text, self.prefix]


def _vllm_message(message: dict[str, Any], as_parts: bool, mark: Mark) -> dict[str, Any]:
    role, content = message["role"], message.get("content")
    if content is None:
        content = []
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts, marks = [], []
    listed: list[dict[str, Any]] = []
    for part in parts:
        text = _text(part)
        if text is None:
            text = mark(part)
            marks.append(text)
        else:
            texts.append(text)
        listed.append({"type": "text", "text": text})
    normalised: dict[str, Any] = {"role": role, "content": listed if as_parts else "\n".join([*marks, *texts])}
    for field in (*_VLLM_FIELDS.get(role, ()), "name"):
        if message.get(field) is not None:
            normalised[field] = message[field]
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if role == "assistant" and reasoning is not None:
        normalised["reasoning"] = normalised["reasoning_content"] = reasoning
    if role == "developer":
        normalised["tools"] = message.get("tools")
    return normalised


def _sglang_message(message: dict[str, Any], as_parts: bool, mark: Mark) -> dict[str, Any]:
    content = message.get("content")
    if content is None:
        content = ""
    elif not isinstance(content, str):
        texts = [(part, _text(part)) for part in content]
        if as_parts:
            content = [{"type": "text", "text": mark(part) if text is None else text} for part, text in texts]
        else:
            content = " ".join(mark(part) if text is None else text for part, text in texts)
    given = {field: value for field, value in message.items() if value is not None}
    return {**given, "role": message["role"], "content": content}


def _text(part: Any) -> str | None:
    """The text of a part; None for an image or the like."""
    if isinstance(part, str):
        return part
    field = TEXTS.get(part["type"])
    if field is None:
        return None
    text: str = part[field]
    if not isinstance(text, str):
        raise TypeError(f"expected text in a part of type {part['type']}, got {type(text).__name__}")
    return text


def _with_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Arguments of tool calls as objects, which is how templates expect them."""
    calls = message.get("tool_calls")
    if message["role"] != "assistant" or not isinstance(calls, list):
        return message
    if not calls:
        del message["tool_calls"]
        return message
    for call in calls:
        function = call["function"]
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments:
            function["arguments"] = json.loads(arguments)
        elif not arguments:
            function["arguments"] = {}
    return message


def _vllm_tools(request: dict[str, Any]) -> list[list[Any] | None]:
    tools = request.get("tools")
    if not tools:
        return [None]
    shaped = []
    for tool in tools:
        function = {"name": tool["function"]["name"], "description": None, "parameters": None, **tool["function"]}
        shaped.append({"type": "function", **tool, "function": function})
    return [shaped]


def _sglang_tools(request: dict[str, Any]) -> list[list[Any] | None]:
    tools, choice = request.get("tools"), request.get("tool_choice")
    if not tools or choice == "none":
        return [None]
    functions = []
    for tool in tools:
        given = tool["function"]
        if isinstance(choice, dict) and given["name"] != choice["function"]["name"]:
            continue
        functions.append(
            {
                "description": given.get("description"),
                "name": given["name"],
                "parameters": given.get("parameters"),
                "strict": given.get("strict", False),
            }
        )
    return [functions, [{"function": function} for function in functions]]


def _text_of(content: Any) -> str:
    """The last text of a message."""
    if isinstance(content, str):
        return content
    texts = [part["text"] for part in content or [] if part["type"] == "text"]
    return texts[-1] if texts else ""


def _cut_after(text: str, final: str) -> str:
    """What was rendered up to the end of its last message, which is to be continued."""
    stripped = final.strip()
    if not stripped or stripped not in text:
        raise RefusedError("the template does not repeat the message that is to be continued")
    start = text.rindex(stripped)
    end = start + len(final.lstrip())
    return text[:end] if text[start:end] == final.lstrip() else text[: start + len(stripped)]
