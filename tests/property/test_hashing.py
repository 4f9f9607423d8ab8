"""Laws of `HashChain`, checked against plain Python."""

import array
import itertools

from hypothesis import given
from hypothesis import strategies as st

from hash_oracle import Unit, block_id, digests, wrapped
from kvevents.hashing import HashChain, block_hashes

TOKENS = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1)), max_size=40)
SALTS = st.sampled_from([None, "", "salt", "élève"])
KEYS = st.sampled_from([None, "", "adapter"])


def units(tokens: list[int], bigram: bool) -> list[Unit]:
    return list(itertools.pairwise(tokens)) if bigram else list(tokens)


def whole(tokens: list[int], page_size: int, bigram: bool) -> list[int]:
    pages = max(len(tokens) - bigram, 0) // page_size
    return tokens[: pages * page_size + bigram] if pages else []


def ids_of(tokens: list[int], page_size: int, salt: str | None, bigram: bool) -> list[int]:
    return [block_id(digest) for digest in digests(units(tokens, bigram), page_size, salt)]


@given(TOKENS, st.integers(1, 5), SALTS, st.booleans())
def test_ids_are_those_of_plain_python(tokens: list[int], page_size: int, salt: str | None, bigram: bool) -> None:
    tokens = whole(tokens, page_size, bigram)
    chain = HashChain.root(page_size, cache_salt=salt, bigram=bigram).extend(tokens)
    assert list(chain.ids) == ids_of(tokens, page_size, salt, bigram)


@given(TOKENS, st.integers(1, 5), SALTS, st.booleans(), st.lists(st.integers(0, 40), max_size=4))
def test_steps_and_splits_change_no_id(
    tokens: list[int], page_size: int, salt: str | None, bigram: bool, cuts: list[int]
) -> None:
    tokens = whole(tokens, page_size, bigram)
    expected = ids_of(tokens, page_size, salt, bigram)
    edges = sorted({0, len(expected), *(cut for cut in cuts if cut < len(expected))})
    root = HashChain.root(page_size, cache_salt=salt, bigram=bigram)
    rest = root.extend(tokens)
    step = root
    for start, end in itertools.pairwise(edges):
        step = step.extend(tokens[start * page_size : end * page_size + bigram])
        head, rest = rest.split(end - start)
        assert list(step.ids) == list(head.ids) == expected[start:end]
        above = expected[start - 1] if start else None
        assert step.parent_id == head.parent_id == above
    assert len(rest) == 0


@given(TOKENS, st.integers(1, 5), KEYS, SALTS, st.booleans(), st.booleans())
def test_block_hashes_are_announced_as_the_format_says(
    tokens: list[int], page_size: int, key: str | None, salt: str | None, named: bool, dynamo: bool
) -> None:
    pages = len(tokens) // page_size
    plain = ids_of(tokens[: pages * page_size], page_size, salt, bigram=False)
    if dynamo and (key is not None or salt):
        plain = [wrapped(block, key, salt or None) for block in plain]
    elif not dynamo and named and key is not None:
        plain = [wrapped(block, key, None) for block in plain]
    announced = block_hashes(
        tokens,
        page_size,
        extra_key=key,
        cache_salt=salt,
        event_format="dynamo" if dynamo else "default",
        named=named,
    )
    assert list(announced) == plain


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.integers(1, 5))
def test_the_buffer_that_holds_the_tokens_does_not_matter(tokens: list[int], page_size: int) -> None:
    expected = list(block_hashes(tokens, page_size))
    for typecode in "iIqQ":
        assert list(block_hashes(array.array(typecode, tokens), page_size)) == expected
