"""Chat templates, in the sandbox and with the additions that Hugging Face's have."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec

if TYPE_CHECKING:
    from jinja2 import Environment, Template, nodes

Content = Literal["auto", "string", "parts"]


class RefusedError(Exception):
    """A chat that the template does not take, or takes too much of."""


class ChatTemplate:
    """A model's template. Whoever renders bounds time and memory: a template is a program.

    Args:
        sources: templates by name; `default`, and perhaps `tool_use` for chats with tools.
        special_tokens: such as `bos_token`, for the template to use.
        content: how it wants the content of messages; `auto` looks.

    Attributes:
        content: how it wants the content of messages.

    Raises:
        ValueError: a template that cannot be read.
    """

    def __init__(
        self, sources: Mapping[str, str], special_tokens: Mapping[str, str], *, content: Content = "auto"
    ) -> None:
        from jinja2 import TemplateSyntaxError  # noqa: PLC0415 - only the process that renders needs it

        environment = _environment()
        try:
            self._templates: dict[str, Template] = {
                name: environment.from_string(source) for name, source in sources.items()
            }
            source = sources.get("default", next(iter(sources.values())))
            is_parts = _loops_over_content(environment.parse(source))
        except TemplateSyntaxError as error:
            raise ValueError(f"chat template, line {error.lineno}: {error.message}") from None
        self._special_tokens = dict(special_tokens)
        self.content: Literal["string", "parts"] = content if content != "auto" else "parts" if is_parts else "string"

    @classmethod
    def load(cls, directory: Path, *, override: Path | None = None, content: Content = "auto") -> "ChatTemplate | None":
        """The template in a model's directory; None where there is none.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is no JSON, or a template cannot be read.
        """
        config = _json(directory / "tokenizer_config.json")
        tokens = {**_json(directory / "special_tokens_map.json"), **config}
        special = {
            name: token if isinstance(token, str) else token["content"]
            for name, token in tokens.items()
            if name.endswith("_token") and (isinstance(token, str) or (isinstance(token, dict) and "content" in token))
        }
        sources = _sources(directory, config) if override is None else {"default": override.read_text()}
        return cls(sources, special, content=content) if sources else None

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        context: Mapping[str, Any],
        *,
        max_bytes: int,
    ) -> str:
        """The text of a chat.

        Raises:
            RefusedError: by the template, or it is longer than `max_bytes`.
        """
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        template = self._templates.get(name) or next(iter(self._templates.values()))
        try:
            return _bounded(
                template.generate({**self._special_tokens, **context, "messages": messages, "tools": tools}), max_bytes
            )
        except (RefusedError, MemoryError):
            raise
        except Exception as error:  # whatever an expression in a template can raise
            raise RefusedError(f"{type(error).__name__}: {error}") from None


def _bounded(pieces: Iterator[str], max_bytes: int) -> str:
    taken: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            raise RefusedError(f"it makes more than {max_bytes} characters of a chat (prompts.max_text_bytes)")
        taken.append(piece)
    return "".join(taken)


def _sources(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    file = directory / "chat_template.jinja"
    if file.is_file():
        more = sorted((directory / "additional_chat_templates").glob("*.jinja"))
        return {"default": file.read_text()} | {one.stem: one.read_text() for one in more}
    given = _json(directory / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(given, str):
        return {"default": given}
    return {one["name"]: one["template"] for one in given or []}


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name}: {error}") from None


def _environment() -> "Environment":
    from jinja2.ext import Extension, loopcontrols  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    class Generation(Extension):
        """`{% generation %}` marks what an assistant said, for training; here it is what it encloses."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja reads it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes characters of HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise RefusedError(f"it refuses the chat: {message}")


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - the engine's local time, as it would say it


def _loops_over_content(tree: "nodes.Template") -> bool:
    """Whether a template goes through the parts of a message's content."""
    from jinja2 import nodes  # noqa: PLC0415

    def content(expression: Any) -> bool:
        match expression:
            case nodes.Getitem(arg=nodes.Const(value="content")) | nodes.Getattr(attr="content"):
                return True
            case nodes.Name(name=name):
                return name in named
            case nodes.Filter(node=inner) | nodes.Getitem(node=inner):
                return content(inner)
        return False

    named: set[str] = set()
    assigned: Iterator[nodes.Assign] = tree.find_all(nodes.Assign)
    for assign in assigned:
        if isinstance(assign.target, nodes.Name) and content(assign.node):
            named.add(assign.target.name)
    return any(content(loop.iter) for loop in tree.find_all(nodes.For))
