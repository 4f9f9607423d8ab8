"""Whether the tokenizer and template at hand make of a text what the engine makes of it."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from kvevents.doctor.listener import Listener
from kvevents.doctor.report import Hop, Verdict
from kvevents.doctor.visit import Visit
from kvevents.errors import ConfigError, TransportError
from kvevents.server.prompts import Prompt, PromptReader, PromptSettings, TokenizerSettings

_LOAD_S = 60.0


class WrittenRequest(NamedTuple):
    """A prompt that is no token ids yet.

    Attributes:
        kind: `text` or `chat`.
        path: where the engine takes it.
        request: its body.
    """

    kind: str
    path: str
    request: dict[str, Any]


def written_requests(visit: Visit) -> list[WrittenRequest]:
    """A text and a chat that no cache has."""
    text, said = (_text(visit.block_size) for _ in range(2))
    messages = [{"role": "user", "content": said}]
    return [
        WrittenRequest("text", "/v1/completions", {"model": visit.model, "prompt": text}),
        WrittenRequest("chat", "/v1/chat/completions", {"model": visit.model, "messages": messages}),
    ]


def check_tokenizer(visit: Visit, listener: Listener) -> bool:
    """Text and chat become the tokens that the engine announces."""
    directory = visit.beliefs.tokenizer
    if directory is None:
        return visit.note(Hop.TOKENIZER, Verdict.SKIPPED, "nobody named a tokenizer (--tokenizer)")
    requests = written_requests(visit)
    try:
        ours = asyncio.run(_read(str(directory), [asked.request for asked in requests]))
    except ConfigError as error:
        return visit.cause(Hop.TOKENIZER, str(error), "name the model's directory, with tokenizer.json")
    for asked, prompt in zip(requests, ours, strict=True):
        if prompt.approximate:
            fix = "give the directory of the very model that the engine serves"
            return visit.cause(Hop.TOKENIZER, f"{asked.kind}: no tokens can be made of it: {prompt.unread}", fix)
        if not _agrees(visit, listener, asked, list(prompt.tokens)):
            return False
    return visit.fine(Hop.TOKENIZER, "text and chat become the tokens that the engine announces")


def _agrees(visit: Visit, listener: Listener, asked: WrittenRequest, ours: Sequence[int]) -> bool:
    kind = asked.kind
    try:
        usage = visit.engine.send(asked.path, asked.request)
    except TransportError as error:
        return visit.cause(Hop.TOKENIZER, f"{kind}: the engine refuses it: {error}", "see the engine's log")
    whole = len(ours) // visit.block_size * visit.block_size
    fix = (
        "give the router the tokenizer and the chat template that the engine has (--chat-template of the engine, the "
        "model's revision); until then it routes text by what it sent where"
    )
    if usage.prompt_tokens != len(ours):
        found = f"{kind}: {len(ours)} tokens here, and {usage.prompt_tokens} in the engine"
        return visit.cause(Hop.TOKENIZER, found, fix)
    if whole and listener.wait_for_store(ours[:whole], visit.beliefs.patience_s) is None:
        found = f"{kind}: as many tokens as in the engine ({len(ours)}), and others"
        return visit.cause(Hop.TOKENIZER, found, fix)
    return True


async def _read(directory: str, requests: Sequence[dict[str, Any]]) -> list[Prompt]:
    tokenizer = TokenizerSettings(models="*", path=directory)
    reader = PromptReader(PromptSettings(tokenizer=(tokenizer,), timeout_s=_LOAD_S))
    try:
        return [await reader.tokenize(reader.read(msgspec.json.encode(request))) for request in requests]
    finally:
        await reader.close()


def _text(block_size: int) -> str:
    """A text that no cache has, with what tokenizers disagree about, longer than a few blocks."""
    words = "naïve café 北京 🙂 1,234.5\n\tdef f(x): return x**2  # twice"
    return " ".join(f"{secrets.token_hex(4)} {words}" for _ in range(2 + block_size // 8))
