"""Names of prefixes say nothing of what is in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents.server.prefixes import Names


@given(st.integers(0, 2**64 - 1))
def test_a_name_can_be_turned_back_where_it_was_given(content: int) -> None:
    names, others = Names(), Names()
    name = names.name(content)
    assert names.content(name) == content
    assert (len(name), name == others.name(content)) == (16, False)


@pytest.mark.parametrize("name", ["", "12", "zzzzzzzzzzzzzzzz", "00000000000000000"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"hexadecimal|invalid literal"):
        Names().content(name)
