from array import array

import pytest

from kvevents._core.tokens import TokenPages
from kvevents.hashing import HashChain


def test_only_whole_pages_count() -> None:
    pages = TokenPages([1, 2, 3, 4, 5], 2)
    assert (len(pages), pages.token_count) == (2, 5)
    assert len(TokenPages([1, 2, 3, 4, 5], 2, bigram=True)) == 2
    assert len(TokenPages([1, 2, 3, 4], 2, bigram=True)) == 1
    assert len(TokenPages([], 2, bigram=True)) == 0


def test_a_key_tells_pages_apart_whatever_buffer_they_came_in() -> None:
    ids = [5, 6, 7, 8]
    keys = {TokenPages(array(code, ids), 2).key(1) for code in "iIqQ"} | {TokenPages(ids, 2).key(1)}
    assert len(keys) == 1
    assert TokenPages(ids, 2).key(0) not in keys
    assert TokenPages([5, 6, 7, 8 + (1 << 32)], 2).key(1) not in keys


def test_pages_in_common_are_counted_from_a_start() -> None:
    run = TokenPages([3, 4, 5, 6, 9, 9], 2)
    assert run.common(TokenPages([1, 2, 3, 4, 5, 6, 7, 8], 2), 1) == 2
    assert run.common(TokenPages([1, 2, 3, 4, 5, 7], 2), 1) == 1
    assert run.common(TokenPages([1, 2], 2), 1) == 0


def test_pairs_overlap_by_one_token() -> None:
    run = TokenPages([1, 2, 3, 4, 5], 2, bigram=True)
    assert run.common(TokenPages([1, 2, 3, 4, 6], 2, bigram=True), 0) == 1
    assert run.cut(1, 2).token_count == 3
    assert run.cut(1, 2).key(0) == run.key(1)


def test_a_cut_is_a_copy_that_can_be_hashed() -> None:
    ids = array("q", [1, 2, 3, 4])
    cut = TokenPages(ids, 2).cut(1, 2)
    ids[2] = 99
    assert list(HashChain.root(2).extend(cut).ids) == list(HashChain.root(2).extend([3, 4]).ids)


@pytest.mark.parametrize(("start", "end"), [(0, 3), (2, 1), (3, 3)])
def test_a_range_outside_is_refused(start: int, end: int) -> None:
    with pytest.raises(IndexError, match="pages: expected a range within 0 to 2"):
        TokenPages([1, 2, 3, 4], 2).cut(start, end)


def test_a_start_outside_is_refused() -> None:
    pages = TokenPages([1, 2, 3, 4], 2)
    with pytest.raises(IndexError, match="pages: expected a range within 0 to 2"):
        pages.key(2)
    with pytest.raises(IndexError, match="pages: expected a range within 0 to 2"):
        pages.common(pages, 3)


def test_a_page_has_a_size() -> None:
    with pytest.raises(ValueError, match="page_size: expected at least 1, got 0"):
        TokenPages([1], 0)
