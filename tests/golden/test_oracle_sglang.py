"""An index that knows only what was announced says what recorded SGLang caches found, on the GPU and on the host."""

from collections.abc import Sequence

import pytest

from goldens import Script, script, script_sources
from kvevents.events import BlockRemoved, KVCacheEvent
from matches import Asked, Matches, Told


def asked(script: Script) -> list[tuple[Asked, bool]]:
    """Every match of a script, and whether its namespace is on the wire."""
    told = Told()
    found: list[tuple[Asked, bool]] = []
    by_step = {id(step): index for index, step in enumerate(script.steps)}
    all_asked = sorted(Matches(script), key=lambda match: by_step[id(match.step)])
    for step in script.steps:
        told.follow(step)
        if step["op"] == "match":
            found.append((all_asked[len(found)], told.knows(step)))
    assert len(found) == len(all_asked)
    return found


EXACT = ("radix_", "unified_full_", "pure_swa_")
"""Caches whose events tell all that decides over a hit."""
PARTLY_TOLD = ("unified_swa_", "unified_mamba_")


def test_every_match_there_is_is_compared() -> None:
    """And most of them where only one answer is right."""
    scripts = [script(name, None) for name in script_sources(None)]
    matching = [one.name for one in scripts if any(step["op"] == "match" for step in one.steps)]
    assert all(name.startswith((*EXACT, *PARTLY_TOLD)) for name in matching)
    found = [match for one in scripts if one.name.startswith(EXACT) for match, is_told in asked(one) if is_told]
    exact = [match for match in found if match.is_exact]
    assert (len(matching), len(found), len(exact)) == (222, 2997, 1685)
    assert sum(sum(match.cache) > 0 for match in exact) == 1271


@pytest.mark.scripts(*EXACT)
def test_a_prompt_hits_what_the_cache_found(golden_script: Script) -> None:
    for match, is_told in asked(golden_script):
        if is_told:
            assert match.cache in match.said
            assert len(match.said) == 1 or not match.is_exact
        else:
            # Blocks of a namespace that is not told look like those of another one: never less, maybe more.
            assert max(map(sum, match.said)) >= sum(match.cache)


@pytest.mark.scripts(*PARTLY_TOLD)
def test_where_windows_and_states_are_not_announced_a_prompt_hits_no_less_than_the_cache_found(
    golden_script: Script,
) -> None:
    for match, _ in asked(golden_script):
        assert max(map(sum, match.said)) >= sum(match.cache)


@pytest.mark.scripts("unified_full_hicache_wb_basic", "unified_full_hicache_wt_basic", "unified_full_hicache_wb_random")
def test_host_prefixes_are_among_what_is_compared(golden_script: Script) -> None:
    assert any(match.cache.host for match, is_told in asked(golden_script) if is_told and match.is_exact)


class Forgetful(Matches):
    """An index that misses removals."""

    def _feed(self, events: Sequence[KVCacheEvent]) -> None:
        super()._feed([event for event in events if not isinstance(event, BlockRemoved)])


@pytest.mark.scripts("radix_random", "unified_full_random")
def test_an_index_that_forgets_removals_is_found_out(golden_script: Script) -> None:
    assert any(match.cache not in match.said for match in Forgetful(golden_script) if match.is_exact)
