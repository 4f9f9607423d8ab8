"""Small tokenizers and templates, as a model's directory has them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXT = "You are a helpful assistant. What is the weather in Paris? The user asks, the assistant answers. " * 20
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|image|>"]

SIMULATED = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""What the simulated engine makes of a chat."""


def write_model(
    directory: Path, tokenizer: Tokenizer, template: str | None, *, config: Mapping[str, Any] | None = None
) -> Path:
    """A model's directory."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    said = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps({**said, **(config or {})}))
    return directory


def trained_tokenizer() -> Tokenizer:
    """A byte-level BPE with a few merges; puts `<s>` before texts, and truncates, which nobody here wants."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=[AddedToken(word, special=True) for word in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair=None, special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.enable_truncation(4)
    return tokenizer


def byte_tokenizer() -> Tokenizer:
    """A token for each byte, its id the byte: the simulated engine's, as a file."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}
    tokenizer = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in letters.items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
