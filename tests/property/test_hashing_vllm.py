"""vLLM's schemes, checked against Python's own pickle, hashlib, the xxhash package and Python's `hash()`."""

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents.hashing import HashChain, HashScheme, block_digests, block_hashes
from vllm_hash_oracle import SCHEMES, Prompt, digests

TOKENS = st.lists(
    st.one_of(
        st.integers(0, 300), st.integers(0, 70_000), st.integers(2**31 - 2, 2**31 + 1), st.integers(0, 2**64 - 1)
    ),
    max_size=24,
)
TEXTS = st.sampled_from(["", "a", "b", "é", "Ā", "\U0001f600", "mm", "lora", "ad1", "x" * 255, "x" * 256, "é" * 128])
OFFSETS = st.one_of(
    st.integers(-40, 300),
    st.sampled_from([-(2**63), -(2**31) - 1, -(2**31), -257, -256, 2**31, 2**63 - 1]),
)
SEEDS = st.sampled_from(["0", "42", "random", "vllm-none-hash", ""])
NAMES = st.sampled_from(sorted(SCHEMES))


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    block_size = draw(st.integers(1, 6))
    images = st.lists(st.tuples(TEXTS, OFFSETS), max_size=4)
    return Prompt(
        draw(TOKENS),
        block_size,
        adapter=draw(st.none() | st.tuples(TEXTS, TEXTS)),
        images=draw(st.lists(images, max_size=3)),
        salt=draw(st.none() | TEXTS),
        embeddings=draw(st.lists(st.binary(min_size=2, max_size=40) | st.sampled_from([b"", b"\x07"]), max_size=2)),
    )


def settings(prompt: Prompt, *, tagged: bool) -> dict[str, Any]:
    """The same prompt as arguments of `block_hashes`."""
    keys: list[list[Any]] = [[*map(list, images)] for images in prompt.images]
    for block, digest in enumerate(prompt.embeddings):
        if block == len(keys):
            keys.append([])
        keys[block].append(digest)
    name, path = prompt.adapter or (None, None)
    blocks = -(-len(prompt.tokens) // prompt.block_size)
    return {
        "extra_key": name,
        "adapter_path": path,
        "cache_salt": prompt.salt,
        "extra_keys": [entry or None for entry in keys[:blocks]],
        "key_form": "tagged" if tagged else "bare",
    }


@given(NAMES, prompts(), SEEDS, st.booleans())
def test_digests_are_those_of_plain_python(scheme: HashScheme, prompt: Prompt, seed: str, tagged: bool) -> None:
    expected = digests(scheme, prompt, seed=seed, tagged=tagged)
    how = settings(prompt, tagged=tagged)
    found = block_digests(prompt.tokens, prompt.block_size, scheme=scheme, hash_seed=seed, **how)
    assert found == expected
    ids = block_hashes(prompt.tokens, prompt.block_size, scheme=scheme, hash_seed=seed, **how)
    assert (ids.format, list(ids)) == ("Q", [int.from_bytes(digest[-8:], "big") for digest in expected])


@given(NAMES, prompts(), SEEDS, st.integers(0, 24), st.booleans())
def test_a_prompt_can_be_continued_from_a_digest_or_a_chain(
    scheme: HashScheme, prompt: Prompt, seed: str, cut: int, tagged: bool
) -> None:
    size = prompt.block_size
    prompt = prompt._replace(images=(), embeddings=(), tokens=prompt.tokens[: len(prompt.tokens) // size * size])
    cut = min(cut, len(prompt.tokens) // size)
    how = settings(prompt, tagged=tagged)
    del how["extra_keys"]
    whole = block_digests(prompt.tokens, size, scheme=scheme, hash_seed=seed, **how)
    chain = HashChain.root(size, scheme=scheme, hash_seed=seed, **how).extend(prompt.tokens)
    assert chain.digests == whole == digests(scheme, prompt, seed=seed, tagged=tagged)
    head, tail = chain.split(cut)
    assert (head.digests, tail.digests) == (whole[:cut], whole[cut:])
    if cut:
        rest = prompt.tokens[cut * size :]
        parent = whole[cut - 1]
        assert block_digests(rest, size, scheme=scheme, hash_seed=seed, parent_digest=parent, **how) == whole[cut:]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("tokens", [1, 13_200, 40_000])
@pytest.mark.parametrize("length", [10, 64 * 1024 - 1, 64 * 1024, 200_000])
def test_values_above_a_frame_are_those_of_plain_python(scheme: HashScheme, tokens: int, length: int) -> None:
    """A pickle is cut into frames of 64 KiB, with long strings and bytes between them."""
    text = "x" * length
    prompt = Prompt(
        [*range(2**16, 2**16 + tokens)] * 2,
        tokens,
        adapter=("adapter", text),
        images=[[(f"image {index}", index) for index in range(300)] + [("mm", 0), ("mm", 0)], [("a", 0), ("a", 1)]],
        salt=text,
        embeddings=[text.encode(), b""],
    )
    expected = digests(scheme, prompt, seed=text, tagged=True)
    how = settings(prompt, tagged=True)
    assert block_digests(prompt.tokens, tokens, scheme=scheme, hash_seed=text, **how) == expected


HASHES = """
import json, sys
for line in sys.stdin:
    seed, blocks = json.loads(line)
    parent, found = hash(seed), []
    for tokens, extra in blocks:
        keys = tuple(tuple(key) if isinstance(key, list) else key for key in extra)
        # Before Python 3.12 the hash of None is an address: its number stands in for it.
        parent = hash((parent, tuple(tokens), keys or 0xfca86420))
        found.append(parent)
    print(json.dumps(found))
"""


@pytest.mark.parametrize("seed", ["0", "1", "42", "4294967295"])
def test_the_builtin_scheme_hashes_as_a_process_with_that_seed(seed: str) -> None:
    prompts = [
        Prompt(range(7), 3, salt="salt-é"),
        Prompt([0, 2**61 - 1, 2**61, 2**64 - 1], 2, adapter=("adapter Ā", "")),
        Prompt(range(4), 2, images=[[("im", -1)], [("\U0001f600", 5)]], adapter=("", "")),
        Prompt(range(4), 2),
    ]
    lines = []
    for prompt in prompts:
        blocks = range(len(prompt.tokens) // prompt.block_size)
        cut = [list(prompt.tokens[block * prompt.block_size :][: prompt.block_size]) for block in blocks]
        extras = [prompt.extra(block, tagged=False) or () for block in blocks]
        lines.append(json.dumps([seed, list(zip(cut, extras, strict=True))]))
    ran = subprocess.run(
        [sys.executable, "-c", HASHES],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": seed},
    )
    for prompt, expected in zip(prompts, ran.stdout.splitlines(), strict=True):
        how = settings(prompt, tagged=False)
        ids = block_hashes(prompt.tokens, prompt.block_size, scheme="vllm-builtin", hash_seed=seed, **how)
        assert (ids.format, list(ids)) == ("q", json.loads(expected))
