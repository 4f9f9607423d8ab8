"""The long vLLM runs: their requests, and what the engine published for each."""

import functools
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from goldens import trace_lines

BLOCK_TOKENS = 512
"""Tokens of a trace's block, scaled down to `S` of the configuration."""


class Published(NamedTuple):
    """A batch as it went out."""

    payload: bytes


class Asked(NamedTuple):
    """A request that came in, with the client's clock."""

    id: int
    prompt: "array[int]"
    at: float


class Answered(NamedTuple):
    """A request that was answered, with the client's clock."""

    id: int
    outputs: list[int]
    cached_tokens: int
    at: float


class Run(NamedTuple):
    """One recorded run."""

    config: dict[str, Any]
    lines: list[Published | Asked | Answered]

    @property
    def published(self) -> list[bytes]:
        """Every payload, in order."""
        return [line.payload for line in self.lines if isinstance(line, Published)]

    @property
    def prompts(self) -> dict[int, "array[int]"]:
        """Prompts by request, in the order in which they came."""
        return {line.id: line.prompt for line in self.lines if isinstance(line, Asked)}

    @property
    def answers(self) -> dict[int, Answered]:
        """Answers by request."""
        return {line.id: line for line in self.lines if isinstance(line, Answered)}


@functools.cache
def recorded_run(name: str) -> Run:
    """A run, read whole."""
    lines = trace_lines(name)
    config = next(lines)["config"]
    return Run(config, list(_lines(lines, config["trace"]["S"])))


def _lines(lines: Iterator[dict[str, Any]], scale: int) -> Iterator[Published | Asked | Answered]:
    for line in lines:
        if line.get("dir") == "pub":
            yield Published(bytes.fromhex(line["frames"][2]))
        elif line.get("op") == "request":
            prompt = _prompt(line["hash_ids"], line["input_length"], scale)
            yield Asked(line["id"], prompt[: line["prompt_tokens"]], line["t"])
        elif line.get("op") == "response":
            cached = line["usage"]["cached_tokens"]
            yield Answered(line["id"], line["output_token_ids"], cached, line["t"])


def _prompt(hash_ids: list[int], input_length: int, scale: int) -> "array[int]":
    """The recipe in the configuration: `scale` tokens a block of the trace, the last one cut in proportion."""
    last = input_length - BLOCK_TOKENS * (len(hash_ids) - 1)
    prompt = array("q")
    for block in hash_ids[:-1]:
        prompt += _block(block, scale)
    return prompt + _block(hash_ids[-1], scale)[: max(1, -(-last * scale // BLOCK_TOKENS))]


@functools.cache
def _block(block: int, scale: int) -> "array[int]":
    return array("q", (10 + _mixed(block * scale + at + 1) % 31990 for at in range(scale)))


def _mixed(number: int) -> int:
    """SplitMix64."""
    mask = 2**64 - 1
    mixed = number * 0x9E3779B97F4A7C15 & mask
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & mask
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & mask
    return mixed ^ mixed >> 31
