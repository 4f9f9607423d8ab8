"""The reader: from bodies to prompts."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import Any

from kvevents._core.prompt import Request, byte_ids, read_request
from kvevents.engine.protocol import ChatRequest, RequestError, decode_request
from kvevents.engine.tokenizer import ByteTokenizer
from kvevents.errors import WireError
from kvevents.server.errors import HttpError
from kvevents.server.prompts.counters import PromptCounters, StandInReason
from kvevents.server.prompts.extra import extra_keys
from kvevents.server.prompts.identity import Identities, Identity
from kvevents.server.prompts.model import Model, ModelState
from kvevents.server.prompts.process import Encoded, Job, TokenizingError
from kvevents.server.prompts.prompt import NO_TOKENS, Pending, Prompt, PromptSource
from kvevents.server.prompts.settings import SIMULATED, PromptSettings

_OTHER_KINDS = ("/v1/responses", "/v1/messages")
"""Endpoints whose messages are not those of chat completions."""


_REMEMBERED_NAMES = 256
"""Models whose tokenizer is remembered: clients may ask for anything."""


class PromptReader:
    """Reads bodies. `read` is quick; what needs a tokenizer is left to `tokenize`. Lives on one event loop.

    Args:
        settings: which tokenizers there are, and what bounds them.
        block_size: tokens in a block of the index, for `Prompt.extra_keys`.
        served: names of the models that each worker serves.
        base_of: the model of an adapter that workers list as a model of its own.

    Attributes:
        counters: what was read, and how.
    """

    def __init__(
        self,
        settings: PromptSettings | None = None,
        *,
        block_size: Callable[[], int] = lambda: 1,
        served: Callable[[], Iterable[Collection[str]]] = tuple,
        base_of: Callable[[str], str | None] = lambda _adapter: None,
    ) -> None:
        settings = settings or PromptSettings()
        self.counters = PromptCounters()
        self._block_size = block_size
        self._identities = Identities(settings.adapters, served=served, base_of=base_of)
        tokenizers = settings.tokenizer if SIMULATED in settings.tokenizer else (*settings.tokenizer, SIMULATED)
        self._models = [Model(tokenizer, settings) for tokenizer in tokenizers]
        self._only = self._models[0] if len(settings.tokenizer) <= 1 else None
        self._model = lru_cache(_REMEMBERED_NAMES)(self._find_model)  # patterns are dear for a short prompt

    def read(self, body: bytes, path: str = "") -> Prompt:
        """The prompt of a request to any endpoint, as far as no tokenizer is needed.

        Args:
            body: as it came.
            path: the endpoint that was asked for.

        Raises:
            HttpError: 400, no engine could take this: it is no JSON, or its token ids are none.
        """
        try:
            request = read_request(body)
        except (WireError, ValueError) as error:
            raise self._refused(error) from None
        return self._prompt(request, path)

    async def read_beside(self, body: bytes, path: str = "") -> Prompt:
        """The same, for bodies of megabytes: other requests go on meanwhile.

        Raises:
            HttpError: 400, as `read`.
        """
        try:
            request = await asyncio.to_thread(read_request, body)
        except (WireError, ValueError) as error:
            raise self._refused(error) from None
        return self._prompt(request, path)

    async def tokenize(self, prompt: Prompt) -> Prompt:
        """The same prompt with its token ids; where they cannot be had, with what stands for its text."""
        if prompt.pending is None:
            return prompt
        request, model, facts = prompt.pending
        text = request.text
        job = Job(request.chat(), None) if text is None else Job(None, text, request.add_special_tokens is not False)
        try:
            encoded = await model.encode(job)
        except TokenizingError as error:
            return self._stand_in(request, facts, error.reason, str(error))
        self.counters.tokenized += 1
        return Prompt(tokens=encoded.tokens, extra_keys=self._extra_keys(request, encoded), tokenizer=model, **facts)

    def observe(self, prompt: Prompt, prompt_tokens: int) -> None:
        """Compare what an engine counted as a prompt's tokens with what was read here.

        Several prompts are counted in one sum, and of images only the engine knows the tokens: those are left out.
        """
        if prompt.tokenizer is None or prompt.prompts != 1 or prompt.extra_keys is not None:
            return
        if prompt.tokenizer.observe(len(prompt.tokens), prompt_tokens):
            self.counters.agreed += 1
        else:
            self.counters.disagreed += 1

    def models(self) -> list[ModelState]:
        """How it stands with each tokenizer."""
        return [model.state() for model in self._models]

    async def start(self) -> None:
        """Begin to load the tokenizers, so that the first prompts need not wait for that."""
        for model in self._models:
            model.start()

    async def close(self) -> None:
        """End the processes that tokenize."""
        for model in self._models:
            await model.close()

    def _refused(self, error: WireError | ValueError) -> HttpError:
        self.counters.refused += 1
        if isinstance(error, WireError):
            return HttpError(400, "not_json", f"body: {error.reason} at byte {error.offset}")
        return HttpError(400, "bad_request", f"body: {error}")

    def _prompt(self, request: Request, path: str) -> Prompt:
        (
            model,
            lora_name,
            cache_salt,
            is_stream,
            wants_usage,
            max_tokens,
            session,
            source,
            prompts,
            ignored,
            unread,
            is_text,
        ) = request.facts()
        self.counters.read[source] += 1
        identity = self._identities.of(model, lora_name)
        facts: dict[str, Any] = {
            "model": identity.model,
            "lora_name": identity.lora_name,
            "cache_salt": cache_salt,
            "is_stream": is_stream,
            "wants_usage": wants_usage,
            "max_tokens": max_tokens,
            "session": session,
            "source": source,
            "prompts": prompts,
            "ignored": ignored,
        }
        if _is_of_another_kind(source, unread, path):
            return self._stand_in(
                request, facts, "unreadable", f"prompts of {path or 'this form'} are not rendered here"
            )
        if unread is not None:
            return Prompt(tokens=NO_TOKENS, unread=f"body: {unread}", **facts)
        if source != "chat" and not is_text:
            return Prompt(tokens=request.tokens, extra_keys=self._extra_keys(request), **facts)
        return self._written(request, identity, facts)

    def _written(self, request: Request, identity: Identity, facts: dict[str, Any]) -> Prompt:
        """A prompt of text, or of messages."""
        model = self._model(identity.model, identity.base)
        if model is None:
            return self._stand_in(request, facts, "no_tokenizer", _no_tokenizer(identity.base))
        if not model.is_due():
            return self._stand_in(request, facts, "disagrees", model.disagreement())
        if model.is_bytes:
            return self._as_bytes(request, facts, model)
        return Prompt(
            tokens=NO_TOKENS, needs_tokenizing=True, pending=Pending(request, model, facts), tokenizer=model, **facts
        )

    def _find_model(self, model: str | None, base: str | None) -> Model | None:
        """The tokenizer of what was asked for by name, else of what is meant."""
        names = [name for name in (model, base) if name is not None]
        if not names:
            return self._only
        return next((one for name in names for one in self._models if one.fits(name)), None)

    def _as_bytes(self, request: Request, facts: dict[str, Any], model: Model) -> Prompt:
        """As the simulated engine reads it."""
        text = request.text
        if text is None:
            try:
                tokens: Any = decode_request(request.chat() or b"", ChatRequest).read(ByteTokenizer()).tokens
            except RequestError as error:
                return Prompt(tokens=NO_TOKENS, unread=f"body: {error}", **facts)
        else:
            tokens = byte_ids(text)
        self.counters.tokenized += 1
        return Prompt(tokens=tokens, extra_keys=self._extra_keys(request), tokenizer=model, **facts)

    def _stand_in(self, request: Request, facts: dict[str, Any], reason: StandInReason, why: str) -> Prompt:
        self.counters.approximate[reason] += 1
        return Prompt(
            tokens=request.stand_in(),
            extra_keys=self._extra_keys(request),
            approximate=True,
            unread=why,
            **facts,
        )

    def _extra_keys(self, request: Request, encoded: Encoded | None = None) -> Any:
        attached = request.attached
        if attached is None and encoded is None:
            return None
        media = [] if encoded is None else list(encoded.media)
        if attached is not None:
            media.insert(0, (0, attached))  # where in the prompt they are only the engine knows
        return extra_keys(media, block_size=self._block_size()) if media else None


def _is_of_another_kind(source: PromptSource, unread: str | None, path: str) -> bool:
    """Whether only the engine knows how a prompt becomes text, though it looks like one that is known here."""
    if path.startswith(_OTHER_KINDS):
        return source in {"chat", "embedding"}
    return source == "embedding" and unread is not None


def _no_tokenizer(model: str | None) -> str:
    if model is None:
        return "the request names no model, and more than one tokenizer is configured"
    return f"no tokenizer is configured for model {model!r}: add one to [[prompts.tokenizer]]"
