"""What routing needs to know of a request."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from kvevents._core.prompt import Request
from kvevents.index.prefix_index import ExtraKeys

if TYPE_CHECKING:
    from kvevents.server.prompts.model import Model

PromptSource: TypeAlias = Literal["ids", "text", "chat", "embedding", "none"]


NO_TOKENS = memoryview(b"").cast("I")


class Pending(NamedTuple):
    """What is left to do for a prompt: its request, the tokenizer, and the fields that are known."""

    request: Request
    model: "Model"
    facts: dict[str, Any]


class Prompt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request, as far as routing goes.

    Attributes:
        tokens: the prompt's ids, a read-only view of 32 or 64 bits each; empty when nothing is known of them.
        model: the model asked for; of an adapter asked for by its name, that name.
        lora_name: the adapter asked for, part of the blocks' identity.
        cache_salt: the tenant's salt, part of the blocks' identity; a secret.
        extra_keys: images and the like, an entry for each block of the index, part of the blocks' identity.
        is_stream: whether the answer is to be streamed.
        wants_usage: whether a stream is to end with the engine's usage.
        max_tokens: tokens that the answer may have at most; None when the request does not say.
        session: what keeps the requests of one conversation together; None when the request does not say.
        source: what the prompt was given as.
        prompts: prompts in the request; the first one is the one that `tokens` are of.
        unread: why the engine's own ids are not known; None when they are, or when they are still to be found.
        needs_tokenizing: whether `PromptReader.tokenize` would find the ids.
        approximate: whether `tokens` only stand for the prompt's text: equal texts have equal beginnings, but no
            engine has these ids. They are above every vocabulary's (`kvevents._core.prompt.STAND_IN`).
        ignored: fields of a type that no engine takes: name, what was expected, offset of the value.
        pending: for `PromptReader.tokenize`.
        tokenizer: what made the tokens, for `PromptReader.observe`.
    """

    tokens: Any
    model: str | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    extra_keys: ExtraKeys | None = None
    is_stream: bool = False
    wants_usage: bool = False
    max_tokens: int | None = None
    session: str | None = None
    source: PromptSource = "none"
    prompts: int = 1
    unread: str | None = None
    needs_tokenizing: bool = False
    approximate: bool = False
    ignored: list[tuple[str, str, int]] = []
    pending: Pending | None = None
    tokenizer: "Model | None" = None
