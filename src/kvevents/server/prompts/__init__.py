"""From a request's body to the token ids that its engine will compute, and what else tells its blocks apart."""

from kvevents.server.prompts.counters import PromptCounters
from kvevents.server.prompts.model import ModelState
from kvevents.server.prompts.prompt import Prompt, PromptSource
from kvevents.server.prompts.reader import PromptReader
from kvevents.server.prompts.settings import PromptSettings, TokenizerSettings

__all__ = [
    "ModelState",
    "Prompt",
    "PromptCounters",
    "PromptReader",
    "PromptSettings",
    "PromptSource",
    "TokenizerSettings",
]
