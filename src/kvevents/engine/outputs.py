"""What a simulated model says: a fixed function of seed, prompt and position."""

import hashlib
from array import array
from collections.abc import Sequence


def output_tokens(prompt: "array[int]", count: int, *, seed: int, alphabet: Sequence[int]) -> "array[int]":
    """The first `count` tokens that follow `prompt`; the same for every `count` as far as both go.

    Args:
        prompt: token ids, int64.
        count: how many tokens.
        seed: another seed, another answer.
        alphabet: the ids to draw from.
    """
    stream = hashlib.shake_128(seed.to_bytes(8, "little", signed=True))
    stream.update(prompt)
    words = array("I", stream.digest(4 * count))
    size = len(alphabet)
    return array("q", [alphabet[word % size] for word in words])
