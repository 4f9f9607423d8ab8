"""Laws of vLLM's scheduler over a block pool, for any requests in any order."""

from array import array
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents.caches import BlockPoolCache
from kvevents.engine.outputs import output_tokens
from kvevents.engine.request import Request, RequestState
from kvevents.engine.timing import TimingModel
from kvevents.engine.vllm.scheduler import VllmScheduler
from kvevents.events import BlockStored
from kvevents.index import PrefixIndex
from kvevents.wire import decode_batch
from residency import Residency
from vllm_bench import VllmBench


class Arrival(NamedTuple):
    """A request, how many steps after the one before it comes, and how many steps later it is given up."""

    gap: int
    prompt: list[int]
    outputs: int
    aborted_after: int | None = None


class Load(NamedTuple):
    """A rank's settings and what it is asked."""

    blocks: int
    page_size: int
    max_tokens: int
    max_running: int
    arrivals: list[Arrival]

    def bench(
        self, *, asynchronous: bool = False, coalesce: Literal["off", "adjacent", "chain", "compact"] = "off"
    ) -> VllmBench:
        return VllmBench(
            coalesce=coalesce,
            blocks=self.blocks,
            page_size=self.page_size,
            max_tokens=self.max_tokens,
            max_running=self.max_running,
            asynchronous=asynchronous,
        )


@st.composite
def loads(draw: st.DrawFn, *, aborts: bool = True) -> Load:
    """Few different tokens, so that prompts share prefixes; little memory, so that requests are preempted."""
    page_size = draw(st.integers(1, 4))
    blocks = draw(st.integers(2, 14))
    stems = draw(st.lists(st.lists(st.integers(0, 2), max_size=20), min_size=1, max_size=3))
    arrivals = []
    for _ in range(draw(st.integers(1, 10))):
        prompt = (draw(st.sampled_from(stems)) + draw(st.lists(st.integers(0, 2), min_size=1, max_size=6)))[
            : blocks * page_size
        ]
        outputs = draw(st.integers(0, min(10, blocks * page_size - len(prompt) + 1)))
        given_up = draw(st.none() | st.integers(0, 6)) if aborts else None
        arrivals.append(Arrival(draw(st.integers(0, 3)), prompt, outputs, given_up))
    return Load(blocks, page_size, draw(st.integers(1, 12)), draw(st.integers(1, 5)), arrivals)


@given(load=loads(), asynchronous=st.booleans())
def test_every_request_ends_and_no_block_is_lost_or_used_twice(load: Load, asynchronous: bool) -> None:
    bench = load.bench(asynchronous=asynchronous)
    residency = Residency()
    coming = list(load.arrivals)
    requests: list[Request] = []
    aborts: dict[int, list[Request]] = {}
    step = next_at = 0
    while coming or not bench.scheduler.is_idle:
        while coming and step >= next_at + coming[0].gap:
            arrival = coming.pop(0)
            next_at = step
            requests.append(bench.add(arrival.prompt, arrival.outputs))
            if arrival.aborted_after is not None:
                aborts.setdefault(step + arrival.aborted_after, []).append(requests[-1])
        for request in aborts.pop(step, []):
            bench.scheduler.abort(request)
        bench.step()  # checks that blocks are held once a sequence
        for event in bench.events:
            if isinstance(event, BlockStored) and event.parent_block_hash is not None:
                held = {block for block, _ in residency.held()}
                assert event.parent_block_hash in held, "a run continues what is held"
            residency.apply([event])
        bench.batches.clear()
        held = {block for block, _ in residency.held()}
        assert held == {block % 2**64 for block, _ in bench.cache.holdings()}
        step += 1
        assert step < 10_000
    bench.finish()
    for request, arrival in zip(requests, load.arrivals, strict=True):
        if request.state is RequestState.ABORTED:
            assert arrival.aborted_after is not None
            continue
        assert request.state is RequestState.FINISHED
        assert request.produced == arrival.outputs
        assert request.cached is not None
        assert 0 <= request.cached < len(arrival.prompt)
        assert request.cached % load.page_size == 0


@pytest.mark.parametrize("level", ["adjacent", "chain", "compact"])
@given(load=loads(aborts=False))
def test_coalescing_says_the_same_of_what_is_held_after_each_batch(
    level: Literal["adjacent", "chain", "compact"], load: Load
) -> None:
    bench = load.bench(coalesce=level)
    plain = load.bench()
    residency = Residency()
    for arrival in load.arrivals:
        for each in (bench, plain):
            each.add(arrival.prompt, arrival.outputs)
    while plain.step():
        bench.step()
        residency.apply(bench.events)
        bench.batches.clear()
        assert {block % 2**64 for block, _ in bench.cache.holdings()} == {block for block, _ in residency.held()}
        assert bench.cache.holdings() == plain.cache.holdings()


@given(load=loads(aborts=False))
def test_rows_of_decode_steps_change_nothing(load: Load) -> None:
    single, rows = load.bench(), load.bench()
    for bench, most in ((single, 1), (rows, 5)):
        for arrival in load.arrivals:
            bench.add(arrival.prompt, arrival.outputs)
        bench.finish(most)
    assert rows.batches == single.batches
    assert rows.cache.reuse_order().tolist() == single.cache.reuse_order().tolist()
    assert abs(rows.seconds - single.seconds) < 1e-9


@given(load=loads(aborts=False))
def test_one_at_a_time_asynchronous_scheduling_changes_only_when_things_are_said(load: Load) -> None:
    waits, overlaps = load.bench(), load.bench(asynchronous=True)
    for arrival in load.arrivals:
        found = []
        for bench in (waits, overlaps):
            request = bench.add(arrival.prompt, arrival.outputs)
            bench.finish()
            found.append((request.cached, bench.cache.holdings(), bench.cache.reuse_order().tolist()))
        assert found[0] == found[1]
    sayings = ([repr(event) for event in bench.events] for bench in (waits, overlaps))
    assert sorted(next(sayings)) == sorted(next(sayings))


@given(load=loads(aborts=False), asynchronous=st.booleans())
def test_an_index_of_the_events_predicts_what_the_engine_finds(load: Load, asynchronous: bool) -> None:
    cache = BlockPoolCache(num_blocks=load.blocks + 1, page_size=load.page_size)
    scheduler = VllmScheduler(
        cache, TimingModel(), max_tokens=load.max_tokens, max_running=1, asynchronous=asynchronous
    )
    index = PrefixIndex(load.page_size)
    index.add_worker("w")
    for arrival in load.arrivals:
        prompt = array("q", arrival.prompt)
        matches = index.match(prompt)
        usable = matches[0].usable if len(matches) else 0
        tokens = prompt + output_tokens(prompt, arrival.outputs, seed=0, alphabet=range(3))
        request = Request(id="r", tokens=tokens, prompt_length=len(prompt))
        scheduler.add(request)
        while (step := scheduler.plan(most=4)) is not None:
            scheduler.commit(step, repeats=step.repeats)
            if (batch := cache.take_batch()) is not None:
                assert decode_batch(batch).skipped == []
                index.apply("w", batch)
        assert request.cached == min(usable, (len(prompt) - 1) // load.page_size) * load.page_size
    held = index.holdings("w").get(0, {}).get("GPU", set())
    assert held == {block for block, _ in cache.holdings()}
