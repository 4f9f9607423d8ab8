"""How prompts are read: the section `[prompts]`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

from kvevents.errors import ConfigError

BYTES = "bytes"
"""In place of a directory: the tokenizer of the simulated engine, a token for each byte."""


class TokenizerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tokenizer of some models.

    Attributes:
        models: pattern for the names of the models, such as `meta-llama/*`.
        path: directory with `tokenizer.json` and, for chats, a template in `tokenizer_config.json` or
            `chat_template.jinja`; or `bytes`, the simulated engine's.
        chat_template: a file with a template that is used instead of the directory's.
        engine: whose manner of handing a chat to a template: `vllm` or `sglang`.
        content: how a message's content comes to the template: `string`, joined text; `parts`, a list of parts; `auto`
            goes by what the template does with it, as engines do.
    """

    models: str
    path: str
    chat_template: str | None = None
    engine: Literal["vllm", "sglang"] = "vllm"
    content: Literal["auto", "string", "parts"] = "auto"

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("prompts.tokenizer.models: expected a pattern such as 'meta-llama/*', got an empty one")
        if self.path == BYTES:
            return
        if not (Path(self.path) / "tokenizer.json").is_file():
            raise ConfigError(f"prompts.tokenizer.path: expected a directory with a tokenizer.json, got {self.path!r}")
        if self.chat_template is not None and not Path(self.chat_template).is_file():
            raise ConfigError(f"prompts.tokenizer.chat_template: expected a file, got {self.chat_template!r}")
        missing = [module for module in ("tokenizers", "jinja2") if find_spec(module) is None]
        if missing:
            raise ConfigError(
                f"prompts.tokenizer: {' and '.join(missing)} is missing to make tokens of text: "
                f"pip install 'kvevents[tokenizers]'"
            )


SIMULATED = TokenizerSettings(models="kvevents-sim*", path=BYTES)
"""That of the simulated engine; there whatever else is configured."""


class PromptSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How prompts become token ids.

    Attributes:
        tokenizer: tokenizers by model; the first whose pattern fits is taken.
        adapters: names of adapters that are asked for as models, with the model each belongs to.
        timeout_s: how long one prompt may take to be rendered and tokenized (and a tokenizer to be loaded, 30 times
            that); what takes longer is ended, and the request is routed by its text.
        max_text_bytes: what a chat template may make of one request at most.
        max_memory_bytes: address space of a process that runs a template and a tokenizer.
        processes: of each tokenizer; each works on one prompt at a time, and the others wait for `timeout_s` at most.
    """

    tokenizer: tuple[TokenizerSettings, ...] = (SIMULATED,)
    adapters: dict[str, str] = {}
    timeout_s: float = 2.0
    max_text_bytes: int = 16 * 2**20
    max_memory_bytes: int = 4 * 2**30
    processes: int = 1

    def __post_init__(self) -> None:
        for name in ("timeout_s", "max_text_bytes", "max_memory_bytes", "processes"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"prompts.{name}: expected more than 0, got {getattr(self, name)}")
