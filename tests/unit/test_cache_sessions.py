"""Sessions: what they have cached goes last while they are open, and in the usual order once they are closed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents.caches import HiRadixCache, Mamba, Node, PrefixCache, RadixCache, SlidingWindow, UnifiedRadixCache
from radix_prompts import A, B, C, D, X, removals

KINDS: dict[str, Any] = {
    "radix": RadixCache,
    "unified": lambda **settings: UnifiedRadixCache(components=[SlidingWindow(8), Mamba(16)], **settings),
    "hierarchical": lambda **settings: HiRadixCache(host_tokens=64, write_policy="write_back", **settings),
}


@pytest.fixture(params=["radix", "unified"])
def cache(request: pytest.FixtureRequest) -> PrefixCache:
    made: PrefixCache = KINDS[request.param](page_size=4, capacity=64, keep_sessions=True)
    made.take_events()
    return made


def found(cache: PrefixCache, *prompts: list[int]) -> list[int]:
    return [cache.match_prefix(prompt).length for prompt in prompts]


def test_what_an_open_session_has_cached_goes_last(cache: PrefixCache) -> None:
    cache.insert(A + B, session_id="chat")
    cache.insert(C)
    cache.insert(D)
    cache.evict(4)
    cache.evict(4)
    assert found(cache, A + B, C, D) == [8, 0, 0]
    cache.check_integrity()


def test_a_close_announces_nothing_and_lets_go_what_nobody_else_wants(cache: PrefixCache) -> None:
    cache.insert(A + B, session_id="chat")
    cache.insert(A + C, session_id="other")
    cache.insert(D)
    cache.take_events()
    assert cache.close_session("chat")
    assert cache.take_events() == []
    assert not cache.close_session("chat"), "it is closed already"
    cache.check_integrity()
    cache.evict(4)
    removed = removals(cache.take_events())
    assert [len(event.block_hashes) for event in removed] == [1]
    assert found(cache, A + B, A + C, D) in ([4, 8, 4], [0, 8, 4])  # with states a match ends where one is
    cache.evict(4)
    assert found(cache, D, A + C) == [0, 8]
    assert cache.close_session("other")
    cache.evict(8)
    assert cache.total == 0
    cache.check_integrity()


def test_what_more_sessions_want_goes_later(cache: PrefixCache) -> None:
    cache.insert(A, session_id="one")
    cache.insert(A, session_id="two")
    cache.insert(B, session_id="one")
    cache.evict(4)
    assert found(cache, A, B) == [4, 0]


def test_a_later_turn_opens_it_again_and_what_was_evicted_is_wanted_no_more(cache: PrefixCache) -> None:
    cache.insert(A + B, session_id="chat")
    cache.evict(64)
    assert not cache.close_session("chat"), "nothing of it is cached any more"
    cache.insert(A + B, session_id="chat")
    cache.insert(A + B + C, session_id="chat")
    assert cache.close_session("chat")
    cache.insert(A + B + C, session_id="chat")
    cache.insert(X)
    cache.evict(4)
    assert found(cache, A + B + C, X) == [12, 0]
    cache.reset()
    assert not cache.close_session("chat")
    cache.check_integrity()


def test_host_memory_keeps_them_longest_too() -> None:
    cache = HiRadixCache(page_size=4, capacity=64, keep_sessions=True, host_tokens=64, write_policy="write_back")
    for prompt, session_id in ((A + B, "chat"), (C, None), (D, None)):
        cache.insert(prompt, session_id=session_id)
    cache.evict(64)
    held = len(cache.holdings())
    assert held == 4
    cache.evict_host(8)
    assert [cache.match_prefix(prompt).host_length for prompt in (A + B, C, D)] == [8, 0, 0]
    cache.insert_host(C)
    assert cache.close_session("chat")
    cache.evict_host(4)
    assert [cache.match_prefix(prompt).host_length for prompt in (A + B, C)] == [0, 4]
    cache.check_integrity()


def test_a_cache_that_keeps_no_sessions_has_none_to_close() -> None:
    cache = RadixCache(page_size=4, capacity=64)
    cache.insert(A, session_id="chat")
    cache.insert(B)
    assert not cache.close_session("chat")
    cache.evict(4)
    assert found(cache, A, B) == [0, 4]


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=5)
STEPS = st.one_of(
    st.tuples(st.just("insert"), PROMPTS, st.sampled_from([None, "a", "b", "c"])),
    st.tuples(st.just("evict"), st.integers(1, 4)),
    st.tuples(st.just("close"), st.sampled_from(["a", "b", "c"])),
)


@pytest.mark.parametrize("kind", KINDS)
@given(steps=st.lists(STEPS, max_size=30))
def test_sessions_against_sets_of_prefixes(kind: str, steps: list[tuple[Any, ...]]) -> None:
    """The oracle: a session wants each prefix that it has cached and that has not left since."""
    cache = KINDS[kind](page_size=1, capacity=64, keep_sessions=True)
    wanted: dict[str, set[tuple[int, ...]]] = {"a": set(), "b": set(), "c": set()}
    for step in steps:
        match step:
            case "insert", prompt, session_id:
                cache.insert(prompt, session_id=session_id)
                if session_id is not None:
                    wanted[session_id] |= {tuple(prompt[:end]) for end in range(1, len(prompt) + 1)}
            case "evict", count:
                cache.evict(count)
            case "close", session_id:
                assert cache.close_session(session_id) == bool(wanted[session_id])
                wanted[session_id] = set()
        seen: dict[tuple[int, ...], set[str]] = {}
        paths: dict[Node | None, tuple[int, ...]] = {}
        for node in cache._tree:
            path = paths.get(node.parent, ())
            for page in range(len(node.pages)):
                path = (*path, int.from_bytes(node.pages.key(page), "little"))
                seen[path] = node.sessions or set()
            paths[node] = path
        wanted = {session: {path for path in prefixes if path in seen} for session, prefixes in wanted.items()}
        assert seen == {path: {session for session in wanted if path in wanted[session]} for path in seen}
        cache.check_integrity()
