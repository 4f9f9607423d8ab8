import array

import pytest

from kvevents._core.hashing import page_digests
from kvevents._core.yardstick import sha256_floor


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_the_floor_hashes_what_recording_hashes(page_size: int) -> None:
    tokens = array.array("I", range(5, 5 + 8 * page_size))
    assert sha256_floor(tokens, page_size).hex() == page_digests(tokens, page_size)[-1]


def test_other_ids_and_no_page_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a buffer of 32-bit ids"):
        sha256_floor(array.array("q", [1]), 1)
    with pytest.raises(ValueError, match="page_size: expected at least 1, got 0"):
        sha256_floor(array.array("I", [1]), 0)
