"""Answers as clients read them: OpenAI's two forms and SGLang's, whole and in chunks."""

import time
from typing import Any, Protocol

import msgspec

from kvevents.engine.request import Request, RequestState
from kvevents.engine.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class Answer(Protocol):
    """One form of answer to one request."""

    def whole(self, request: Request) -> bytes:
        """The body of the answer to a finished request."""
        ...

    def chunk(self, request: Request) -> bytes:
        """What is new since the last chunk, as a server-sent event."""
        ...

    def end(self, request: Request, /) -> bytes:
        """What ends the stream after the last chunk."""
        ...


class _OpenAIAnswer:
    prefix: str
    kind: str
    chunk_kind: str

    def __init__(self, model: str, tokenizer: Tokenizer, *, wants_usage: bool = False) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._wants_usage = wants_usage
        self._created = int(time.time())
        self._sent = 0

    def whole(self, request: Request) -> bytes:
        return _encode(self._frame(request, self.kind, [self._next(request)]) | {"usage": usage(request)})

    def chunk(self, request: Request) -> bytes:
        return _event(self._frame(request, self.chunk_kind, [self._next(request, is_chunk=True)]))

    def end(self, request: Request, /) -> bytes:
        if not self._wants_usage:
            return DONE
        return _event(self._frame(request, self.chunk_kind, []) | {"usage": usage(request)}) + DONE

    def choice(self, text: str, *, is_first: bool, is_chunk: bool) -> dict[str, Any]:
        """How this form spells a text."""
        raise NotImplementedError

    def _next(self, request: Request, *, is_chunk: bool = False) -> dict[str, Any]:
        text = self._tokenizer.decode(request.outputs[self._sent :])
        choice = self.choice(text, is_first=self._sent == 0, is_chunk=is_chunk)
        self._sent = request.produced
        return {"index": 0, **choice, "logprobs": None, "finish_reason": finish_reason(request)}

    def _frame(self, request: Request, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{request.id}",
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }


class CompletionAnswer(_OpenAIAnswer):
    """`/v1/completions`."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def choice(self, text: str, **_: bool) -> dict[str, Any]:
        return {"text": text}


class ChatAnswer(_OpenAIAnswer):
    """`/v1/chat/completions`."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def choice(self, text: str, *, is_first: bool, is_chunk: bool) -> dict[str, Any]:
        message = {"role": "assistant", "content": text} if is_first else {"content": text}
        return {"delta" if is_chunk else "message": message}


class GenerateAnswer:
    """`/generate`; each chunk repeats the text so far, as SGLang's do."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._started = time.monotonic()

    def whole(self, request: Request) -> bytes:
        return _encode(self._value(request))

    def chunk(self, request: Request) -> bytes:
        return _event(self._value(request))

    def end(self, _request: Request, /) -> bytes:
        return DONE

    def _value(self, request: Request) -> dict[str, Any]:
        outputs = request.outputs.tolist()
        reason = finish_reason(request)
        return {
            "text": self._tokenizer.decode(outputs),
            "output_ids": outputs,
            "meta_info": {
                "id": request.id,
                "finish_reason": reason and {"type": reason, "length": request.output_length},
                "prompt_tokens": request.prompt_length,
                "completion_tokens": request.produced,
                "cached_tokens": request.cached or 0,
                "dp_rank": request.dp_rank,
                "e2e_latency": time.monotonic() - self._started,
            },
        }


def usage(request: Request) -> dict[str, Any]:
    """Token counts in OpenAI's form."""
    return {
        "prompt_tokens": request.prompt_length,
        "completion_tokens": request.produced,
        "total_tokens": request.known,
        "prompt_tokens_details": {"cached_tokens": request.cached or 0},
    }


def finish_reason(request: Request) -> str | None:
    """A simulated model never stops by itself: outputs end at the length asked for."""
    return "length" if request.state is RequestState.FINISHED else None


def _event(value: object) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"
