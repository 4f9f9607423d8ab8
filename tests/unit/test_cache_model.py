"""The oracle of hybrid groups, on the groups of eight blocks (it has to be right before it can judge caches)."""

from cache_model import PLAIN, EventModel
from kvevents.events import BlockRemoved, BlockStored, KVCacheEvent

TOKENS = list(range(8))
WINDOW = 2


def stored(group: int, *blocks: int) -> list[KVCacheEvent]:
    """Block n has token n and is called 100 + n."""
    return [BlockStored([100 + n], 99 + n if n else None, [n], 1, medium="GPU", group_idx=group) for n in blocks]


def usable(*events: list[KVCacheEvent], components: tuple[str, ...]) -> int:
    model = EventModel(components, page_size=1, bigram=False)
    for batch in events:
        model.apply(batch, PLAIN)
    return len(model.usable(TOKENS, PLAIN, WINDOW))


def test_the_window_before_the_end_has_to_be_whole() -> None:
    full, window = stored(0, *range(8)), stored(1, 3, 4, 5, 7)
    assert usable(full, window, components=("full", "sliding_window")) == 6
    lost: list[KVCacheEvent] = [BlockRemoved([105], "GPU", group_idx=1)]
    assert usable(full, window, lost, components=("full", "sliding_window")) == 5


def test_a_prefix_shorter_than_the_window_needs_all_of_it() -> None:
    assert usable(stored(0, 0), stored(1, 0), components=("full", "sliding_window")) == 1
    assert usable(stored(0, 0, 1), stored(1, 1), components=("full", "sliding_window")) == 0


def test_a_state_has_to_be_at_the_end() -> None:
    full, states = stored(0, *range(8)), stored(1, 2, 5)
    assert usable(full, states, components=("full", "mamba")) == 6


def test_both_at_one_place() -> None:
    full, window, states = stored(0, *range(8)), stored(1, 3, 4, 5, 7), stored(2, 2, 4, 7)
    assert usable(full, window, states, components=("full", "sliding_window", "mamba")) == 5
