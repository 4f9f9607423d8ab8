"""Requests as clients send them."""

from array import array
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from kvevents.engine.tokenizer import Tokenizer
from kvevents.errors import KVEventsError

TokenId = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class RequestError(KVEventsError):
    """A request that cannot be served as it is.

    Attributes:
        status: HTTP status of the answer.
        param: the field at fault, where it is one.
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


class Prompt(NamedTuple):
    """What every form of request comes down to."""

    tokens: "array[int]"
    max_tokens: int


class _Common(msgspec.Struct, kw_only=True):
    """Fields that all requests share; fields unknown here (temperature and the like) change nothing and are ignored."""

    stream: bool | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    lora_path: str | None = None
    session_id: str | None = None
    priority: int | None = None
    data_parallel_rank: int | None = None
    rid: str | None = None

    def check(self) -> None:
        """Raise `RequestError` for what would change the answer's shape and is not simulated."""

    def read(self, tokenizer: Tokenizer) -> Prompt:
        """The token ids, and how many outputs are wanted.

        Raises:
            RequestError: there is no prompt, or one that cannot be read.
        """
        raise NotImplementedError


Form = TypeVar("Form", bound=msgspec.Struct)


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _OpenAI(_Common, kw_only=True):
    model: str | None = None
    max_tokens: Count | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    logprobs: int | bool | None = None

    def check(self) -> None:
        if self.n not in (None, 1):
            raise RequestError(f"n: expected 1 (one answer for each request), got {self.n}", param="n")
        if self.logprobs:
            raise RequestError("logprobs: the simulated model has none; leave it out", param="logprobs")

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionRequest(_OpenAI, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: str | list[TokenId]
    echo: bool | None = None

    def check(self) -> None:
        super().check()
        if self.echo:
            raise RequestError("echo: the prompt is not repeated; leave it out", param="echo")

    def read(self, tokenizer: Tokenizer) -> Prompt:
        return Prompt(_tokens(self.prompt, tokenizer, "prompt"), 16 if self.max_tokens is None else self.max_tokens)


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None

    def text(self) -> str:
        """The message's text; only text can be read."""
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        for part in self.content:
            if part.type != "text" or part.text is None:
                raise RequestError(f"messages: expected content of type 'text', got {part.type!r}", param="messages")
        return "".join(part.text or "" for part in self.content)


class ChatRequest(_OpenAI, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: Count | None = None

    def read(self, tokenizer: Tokenizer) -> Prompt:
        if not self.messages:
            raise RequestError("messages: expected at least one", param="messages")
        wanted = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        text = "".join(f"<|{message.role}|>\n{message.text()}\n" for message in self.messages)
        return Prompt(tokenizer.encode(f"{text}<|assistant|>\n"), 128 if wanted is None else wanted)


class SamplingParams(msgspec.Struct):
    max_new_tokens: Count | None = None
    n: int | None = None


class GenerateRequest(_Common, kw_only=True):
    """Body of `/generate`, SGLang's own form."""

    text: str | None = None
    input_ids: list[TokenId] | None = None
    sampling_params: SamplingParams | None = None

    def check(self) -> None:
        if self.sampling_params and self.sampling_params.n not in (None, 1):
            raise RequestError(f"sampling_params.n: expected 1, got {self.sampling_params.n}", param="sampling_params")

    def read(self, tokenizer: Tokenizer) -> Prompt:
        given = self.text if self.input_ids is None else self.input_ids
        if given is None or (self.text is not None and self.input_ids is not None):
            raise RequestError("expected one of text and input_ids")
        wanted = self.sampling_params.max_new_tokens if self.sampling_params else None
        param = "text" if self.input_ids is None else "input_ids"
        return Prompt(_tokens(given, tokenizer, param), 128 if wanted is None else wanted)


class CloseSessionRequest(msgspec.Struct):
    """Body of `/close_session`, as SGLang has it."""

    session_id: str


def decode_request(body: bytes, form: type[Form]) -> Form:
    """Read a body.

    Raises:
        RequestError: not JSON, or not of this form.
    """
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"request body: {error}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"request body: not UTF-8: {error}") from error


def _tokens(given: str | list[int], tokenizer: Tokenizer, param: str) -> "array[int]":
    try:
        tokens = tokenizer.encode(given) if isinstance(given, str) else array("q", given)
    except OverflowError:
        raise RequestError(f"{param}: expected token ids below 2**63", param=param) from None
    if not tokens:
        raise RequestError(f"{param}: expected at least one token, got none", param=param)
    return tokens
