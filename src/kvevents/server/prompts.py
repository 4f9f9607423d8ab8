"""From a request's body to what routing needs of it; everything else in the body is left alone."""

from array import array
from typing import NamedTuple

import msgspec

from kvevents.engine.protocol import ChatRequest, Message, RequestError, TokenId
from kvevents.engine.tokenizer import Tokenizer
from kvevents.server.errors import HttpError


class Prompt(NamedTuple):
    """What a request asks for, as far as routing goes.

    Attributes:
        tokens: the prompt's ids (int64); empty when they are not known.
        model: the model asked for.
        lora_name: the adapter asked for, part of the blocks' identity.
        cache_salt: the tenant's salt, part of the blocks' identity; a secret.
        unread: why the tokens are not known; None when they are.
    """

    tokens: "array[int]"
    model: str | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    unread: str | None = None


class _Form(msgspec.Struct):
    """Every field that any of the endpoints takes; unknown ones are for the engine."""

    token_ids: list[TokenId] | None = None
    text: str | None = None
    prompt: str | list[TokenId] | None = None
    messages: list[Message] | None = None
    model: str | None = None
    lora_name: str | None = None
    lora_path: str | None = None
    cache_salt: str | None = None


_decode = msgspec.json.Decoder(_Form).decode


class PromptReader:
    """Reads bodies, with the tokenizer that the engines use."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def read(self, body: bytes) -> Prompt:
        """The prompt in a body with one of `token_ids`, `text`, `prompt` and `messages`.

        Raises:
            HttpError: 400, the body is no JSON or there is not exactly one prompt of a known form in it.
        """
        try:
            form = _decode(body)
            tokens = self._tokens(form)
        except UnicodeDecodeError as error:
            raise HttpError(400, "not_json", f"body: expected JSON in UTF-8: {error}") from None
        except msgspec.ValidationError as error:
            raise HttpError(400, "bad_request", f"body: {error}") from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise HttpError(400, "not_json", f"body: expected JSON: {error}") from None
        except OverflowError:
            raise HttpError(400, "bad_request", "body: expected token ids below 2**63") from None
        except RequestError as error:
            raise HttpError(400, "bad_request", str(error)) from None
        return Prompt(tokens, form.model, form.lora_name or form.lora_path, form.cache_salt)

    def read_leniently(self, body: bytes) -> Prompt:
        """As `read`, but a JSON body of a form that only the engine may know gives a prompt without tokens.

        Raises:
            HttpError: 400, the body is no JSON.
        """
        try:
            return self.read(body)
        except HttpError as error:
            if error.code == "not_json":
                raise
            return Prompt(array("q"), unread=error.message)

    def _tokens(self, form: _Form) -> "array[int]":
        prompts = [one for one in (form.token_ids, form.text, form.prompt) if one is not None]
        if len(prompts) + (form.messages is not None) != 1:
            raise HttpError(400, "bad_request", "body: expected one of token_ids, text, prompt and messages")
        if form.messages is not None:
            return ChatRequest(messages=form.messages).read(self._tokenizer).tokens
        (prompt,) = prompts
        return self._tokenizer.encode(prompt) if isinstance(prompt, str) else array("q", prompt)
