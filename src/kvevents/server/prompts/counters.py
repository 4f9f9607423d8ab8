"""What the reader counts."""

from collections import Counter
from typing import Literal, TypeAlias

import msgspec

from kvevents.server.prompts.prompt import PromptSource

StandInReason: TypeAlias = Literal[
    "no_tokenizer", "loading", "failed", "busy", "timeout", "template", "disagrees", "unreadable"
]
"""Why a prompt's text stood in for its tokens."""


class PromptCounters(msgspec.Struct):
    """Sums since the start.

    Attributes:
        read: bodies by what the prompt was given as.
        refused: bodies that no engine could take.
        tokenized: texts and chats that a tokenizer made into ids.
        approximate: texts and chats whose bytes stood in for ids, by reason: `no_tokenizer` (none is configured for the
            model), `loading`, `failed` (its process or its files), `busy` (too many wait), `timeout`, `template` (it
            refused the chat), `disagrees` (with the engine, see `ModelState`), `unreadable` (what the request asks for
            is not simulated here, such as a template of its own).
        agreed: prompts of which the engine counted as many tokens as were read here.
        disagreed: prompts of which it counted others.
    """

    read: Counter[PromptSource] = msgspec.field(default_factory=Counter)
    refused: int = 0
    tokenized: int = 0
    approximate: Counter[StandInReason] = msgspec.field(default_factory=Counter)
    agreed: int = 0
    disagreed: int = 0
