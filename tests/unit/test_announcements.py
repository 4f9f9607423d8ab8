"""Events against one event a page, and what the listener knows of the fleet."""

from array import array

import pytest

from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.simulation.announcements import Listener, event_figures, one_event_a_page
from kvevents.wire import encode_batch

STORED = BlockStored([11, 12, 13], 10, [1, 2, 3, 4, 5, 6], 2, medium="GPU", session_id="s")


def encoded(*events: KVCacheEvent) -> bytes:
    return encode_batch(KVEventBatch(1.0, list(events), 0))


def test_a_store_is_taken_apart_into_a_chain() -> None:
    assert list(one_event_a_page(STORED)) == [
        BlockStored([11], 10, [1, 2], 2, medium="GPU", session_id="s"),
        BlockStored([12], 11, [3, 4], 2, medium="GPU", session_id="s"),
        BlockStored([13], 12, [5, 6], 2, medium="GPU", session_id="s"),
    ]


def test_extra_keys_go_with_their_block() -> None:
    event = BlockStored([1, 2], None, [1, 2], 1, extra_keys=[["a"], None])
    assert [page.extra_keys for page in one_event_a_page(event) if isinstance(page, BlockStored)] == [[["a"]], [None]]


@pytest.mark.parametrize("event", [AllBlocksCleared(), BlockStored([1, 2], None, [], 2), BlockStored([], None, [], 2)])
def test_what_cannot_be_taken_apart_stays(event: KVCacheEvent) -> None:
    assert list(one_event_a_page(event)) in ([event], [])


def test_removals_are_taken_apart_too() -> None:
    assert list(one_event_a_page(BlockRemoved([1, 2], medium="GPU"))) == [
        BlockRemoved([1], medium="GPU"),
        BlockRemoved([2], medium="GPU"),
    ]


def test_figures_count_pages_events_and_bytes() -> None:
    removed = BlockRemoved([11, 12], medium="GPU")
    payloads = [encoded(AllBlocksCleared()), encoded(STORED, removed), encoded(STORED)]
    figures = event_figures(payloads)
    assert (figures.batches, figures.pages_stored, figures.pages_removed) == (3, 6, 2)
    assert (figures.stored_events, figures.events_after, figures.events_before) == (2, 4, 9)
    assert figures.pages_per_event == 3.0
    assert figures.bytes_after == sum(map(len, payloads))
    pages = [*one_event_a_page(STORED), *one_event_a_page(removed)]
    alone = [encoded(AllBlocksCleared()), encoded(*pages), encoded(*one_event_a_page(STORED))]
    assert figures.bytes_before == sum(map(len, alone)) > figures.bytes_after


def test_no_event_is_no_page_an_event() -> None:
    assert event_figures([]).pages_per_event == 0.0


def test_the_listener_knows_what_the_best_worker_would_find() -> None:
    listener = Listener(2)
    tokens = array("I", range(100, 108))
    whole = BlockStored([1, 2, 3, 4], None, tokens.tolist(), 2, medium="GPU")
    assert listener.held(tokens) == 0
    listener.apply("a", encoded(BlockStored([1, 2], None, tokens[:4].tolist(), 2, medium="GPU")), seq=0, dp_rank=0)
    assert listener.held(tokens) == 4
    listener.apply("b", encoded(whole), seq=0, dp_rank=0)
    assert listener.held(tokens) == 6, "the last token is always computed"
    assert listener.held(tokens[:7]) == 6
    listener.clear_worker("b")
    assert listener.held(tokens) == 4
    assert event_figures(listener.payloads).pages_stored == 6


def test_the_listener_says_which_batch_has_not_come() -> None:
    listener = Listener(2)
    assert listener.missing({("a", 0): None}) is None
    assert "expected batch 0, the last that came is None" in (listener.missing({("a", 0): 0}) or "")
    listener.apply("a", encoded(AllBlocksCleared()), seq=4, dp_rank=0)
    assert listener.missing({("a", 0): 4, ("b", 0): None}) is None
    assert "a rank 0: expected batch 5, the last that came is 4" in (listener.missing({("a", 0): 5}) or "")
