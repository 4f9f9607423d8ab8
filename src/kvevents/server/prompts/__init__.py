"""From a request's body to the token ids that its engine will compute, and what else tells its blocks apart."""

from kvevents.server.prompts.prompt import Prompt, PromptSource
from kvevents.server.prompts.reader import PromptReader
from kvevents.server.prompts.settings import PromptSettings

__all__ = ["Prompt", "PromptReader", "PromptSettings", "PromptSource"]
