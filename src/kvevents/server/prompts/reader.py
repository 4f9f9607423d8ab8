"""The reader: from bodies to prompts."""

from array import array

import msgspec

from kvevents.engine.protocol import ChatRequest, Message, RequestError, StreamOptions, TokenId
from kvevents.engine.tokenizer import ByteTokenizer
from kvevents.server.errors import HttpError
from kvevents.server.prompts.prompt import Prompt, PromptSource
from kvevents.server.prompts.settings import PromptSettings


class _Form(msgspec.Struct):
    token_ids: list[TokenId] | None = None
    text: str | None = None
    prompt: str | list[TokenId] | None = None
    messages: list[Message] | None = None
    model: str | None = None
    lora_name: str | None = None
    lora_path: str | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    session_id: str | None = None
    user: str | None = None


_decode = msgspec.json.Decoder(_Form).decode


class PromptReader:
    """Reads bodies. `read` is quick; what needs a tokenizer is left to `tokenize`."""

    def __init__(self, settings: PromptSettings | None = None) -> None:
        self._settings = settings or PromptSettings()
        self._tokenizer = ByteTokenizer()

    def read(self, body: bytes, path: str = "/query") -> Prompt:  # noqa: ARG002
        """The prompt of a request.

        Args:
            body: as it came.
            path: what was asked for.

        Raises:
            HttpError: 400, no engine could take this: it is no JSON, or its token ids are none.
        """
        try:
            form = _decode(body)
            tokens, source = self._tokens(form)
        except UnicodeDecodeError as error:
            raise HttpError(400, "not_json", f"body: expected JSON in UTF-8: {error}") from None
        except msgspec.ValidationError as error:
            return Prompt(tokens=array("q"), unread=f"body: {error}")
        except (msgspec.DecodeError, RecursionError) as error:
            raise HttpError(400, "not_json", f"body: expected JSON: {error}") from None
        except OverflowError:
            raise HttpError(400, "bad_request", "body: expected token ids below 2**63") from None
        except RequestError as error:
            return Prompt(tokens=array("q"), unread=str(error))
        return Prompt(
            tokens=tokens,
            model=form.model,
            lora_name=form.lora_name or form.lora_path,
            cache_salt=form.cache_salt,
            is_stream=bool(form.stream),
            wants_usage=bool(form.stream_options and form.stream_options.include_usage),
            max_tokens=form.max_tokens if form.max_completion_tokens is None else form.max_completion_tokens,
            session=form.session_id or form.user,
            source=source,
            unread=None if source != "none" else "expected one of token_ids, text, prompt and messages",
        )

    async def tokenize(self, prompt: Prompt) -> Prompt:
        """The same prompt with its token ids; where they cannot be had, with what stands for its text."""
        return prompt

    def observe(self, prompt: Prompt, prompt_tokens: int) -> None:
        """Compare what an engine counted as the prompt's tokens with what was read here."""

    async def close(self) -> None:
        """Stop what was started."""

    def _tokens(self, form: _Form) -> tuple["array[int]", PromptSource]:
        if sum(one is not None for one in (form.token_ids, form.text, form.prompt, form.messages)) > 1:
            raise RequestError("body: expected one of token_ids, text, prompt and messages")
        if form.messages is not None:
            return ChatRequest(messages=form.messages).read(self._tokenizer).tokens, "chat"
        for prompt in (form.token_ids, form.text, form.prompt):
            if prompt is not None:
                if isinstance(prompt, str):
                    return self._tokenizer.encode(prompt), "text"
                return array("q", prompt), "ids"
        return array("q"), "none"
