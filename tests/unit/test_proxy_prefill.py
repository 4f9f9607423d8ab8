"""The fields of a request that is computed on one worker and answered by another."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents.server.proxy.prefill import bootstrap_rooms, with_bootstrap

URL = "http://prefill.local:30000"


def spliced(body: bytes, **options: Any) -> Any:
    return json.loads(with_bootstrap(body, url=URL, port=8998, **options))


@pytest.mark.parametrize("body", [b"{}", b" { } \n", b'{"prompt": [1, 2], "seed": 1.50}', b'{"a":{"b":[]}}\r\n'])
def test_the_fields_come_last_and_nothing_else_changes(body: bytes) -> None:
    result = with_bootstrap(body, url=URL, port=8998)
    assert result.startswith(body.rstrip()[:-1].rstrip())
    read = json.loads(result)
    assert read.pop("bootstrap_host") == "prefill.local"
    assert read.pop("bootstrap_port") == 8998
    assert 0 <= read.pop("bootstrap_room") < 2**63
    assert read == json.loads(body)


def test_a_client_does_not_say_where_the_cache_is_sent() -> None:
    assert spliced(b'{"bootstrap_host": "evil", "bootstrap_port": 1}')["bootstrap_host"] == "prefill.local"


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ({"prompt": ["a", "b", "c"]}, 3),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": [1, 2, 3]}, None),
        ({"prompt": ["a"]}, 1),
        ({"prompt": "a", "n": 4}, 4),
        ({"prompt": "a", "n": 1}, None),
        ({"messages": [], "n": None}, None),
    ],
)
def test_several_sequences_have_a_room_each(body: object, size: int | None) -> None:
    read = spliced(json.dumps(body).encode())
    if size is None:
        assert isinstance(read["bootstrap_room"], int)
    else:
        assert read["bootstrap_host"] == ["prefill.local"] * size
        assert read["bootstrap_port"] == [8998] * size
        assert len(set(read["bootstrap_room"])) == size


@given(st.integers(1, 64).flatmap(lambda ranks: st.tuples(st.just(ranks), st.integers(0, ranks - 1))))
def test_a_room_says_which_rank_computes(of: tuple[int, int]) -> None:
    ranks, dp_rank = of
    for room in bootstrap_rooms(5, ranks=ranks, dp_rank=dp_rank):
        assert 0 <= room < 2**63
        assert room % ranks == dp_rank
    assert spliced(b"{}", ranks=ranks, dp_rank=dp_rank).get("disagg_prefill_dp_rank", 0) == (
        dp_rank if ranks > 1 else 0
    )


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"}"', b'{"n": "x"}', b"}{"])
def test_what_is_no_object_cannot_be_divided(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  whatever the reader says
        with_bootstrap(body, url=URL, port=None)
