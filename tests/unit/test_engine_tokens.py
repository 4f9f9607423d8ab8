"""Text to ids and back; outputs that depend on seed, prompt and position alone."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents.engine.outputs import output_tokens
from kvevents.engine.tokenizer import ByteTokenizer


@given(text=st.text(), offset=st.sampled_from([0, 3]))
def test_bytes_are_tokens(text: str, offset: int) -> None:
    tokenizer = ByteTokenizer(offset)
    ids = tokenizer.encode(text)
    assert ids.tolist() == [byte + offset for byte in text.encode()]
    assert tokenizer.decode(ids) == text


def test_a_cut_character_is_replaced_not_fatal() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode("ä")[:1]) == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("offset", [0, 3])
def test_outputs_are_readable(offset: int) -> None:
    tokenizer = ByteTokenizer(offset)
    ids = output_tokens(array("q", [1, 2]), 500, seed=0, alphabet=tokenizer.alphabet)
    text = tokenizer.decode(ids)
    assert len(text) == 500
    assert text.isascii()
    assert text.isprintable()


@given(
    prompt=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=9),
    seed=st.integers(-(2**63), 2**63 - 1),
    short=st.integers(0, 20),
    more=st.integers(0, 20),
)
def test_outputs_do_not_depend_on_how_many_are_asked_for(prompt: list[int], seed: int, short: int, more: int) -> None:
    ids = array("q", prompt)
    long = output_tokens(ids, short + more, seed=seed, alphabet=range(50))
    assert len(long) == short + more
    assert output_tokens(ids, short, seed=seed, alphabet=range(50)) == long[:short]


def test_another_seed_or_prompt_is_another_answer() -> None:
    def answer(prompt: list[int], seed: int) -> list[int]:
        return output_tokens(array("q", prompt), 20, seed=seed, alphabet=range(50)).tolist()

    assert answer([1, 2], 0) == answer([1, 2], 0)
    assert len({tuple(answer(prompt, seed)) for prompt in ([1, 2], [2, 1], [1]) for seed in (0, 1, -1)}) == 9
