"""The scheduler: batching, memory, retraction; and that rows of decode steps change nothing."""

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents.caches import RadixCache
from kvevents.engine.memory import KVMemory
from kvevents.engine.outputs import output_tokens
from kvevents.engine.request import Request, RequestState
from kvevents.engine.scheduler import Progress, Scheduler
from kvevents.engine.timing import TimingModel
from kvevents.errors import CapacityError
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvevents.index import PrefixIndex

PAGE = 4
TIMING = TimingModel(prefill_tokens_per_second=1000, decode_step_ms=10, decode_step_per_request_ms=1)


class Bench:
    """A scheduler over a real cache, stepped by hand."""

    def __init__(self, *, capacity: int = 400, chunk: int = 1000, max_running: int = 8) -> None:
        self.cache = RadixCache(page_size=PAGE, capacity=capacity)
        self.memory = KVMemory(self.cache, page_size=PAGE)
        self.scheduler = Scheduler(self.memory, TIMING, chunk_size=chunk, max_running=max_running)
        self.cache.take_events()
        self.seconds = 0.0

    def add(self, prompt: list[int], outputs: int = 4, **options: Any) -> Request:
        tokens = array("q", prompt)
        answer = output_tokens(tokens, outputs, seed=0, alphabet=range(1000, 2000))
        request = Request(id=str(prompt), tokens=tokens + answer, prompt_length=len(prompt), **options)
        self.scheduler.add(request)
        return request

    def step(self, most: int = 1, repeats: int | None = None) -> Progress | None:
        step = self.scheduler.plan(most=most)
        if step is None:
            return None
        done = min(repeats or step.repeats, step.repeats)
        self.seconds += done * step.seconds
        progress = self.scheduler.commit(step, repeats=done)
        self.scheduler.check_integrity()
        self.cache.check_integrity()
        return progress

    def finish(self, most: int = 1) -> None:
        while self.step(most):
            pass
        assert self.scheduler.is_idle
        assert self.memory.private == 0
        assert self.cache.total == self.cache.evictable


def prompt(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def stored(events: list[Any]) -> list[BlockStored]:
    return [event for event in events if isinstance(event, BlockStored)]


def test_nothing_to_do() -> None:
    bench = Bench()
    assert bench.scheduler.is_idle
    assert bench.step() is None


def test_prefill_gives_the_first_output_and_each_decode_step_one_more() -> None:
    bench = Bench()
    request = bench.add(prompt(0, 10), outputs=3)
    assert bench.step() == Progress(prefilled=10, decode_steps=0, updated=[])
    assert request.produced == 1
    assert bench.step() == Progress(prefilled=0, decode_steps=1, updated=[])
    assert bench.step() == Progress(prefilled=0, decode_steps=1, updated=[request])
    assert request.state is RequestState.FINISHED
    assert request.outputs.tolist() == request.tokens[10:].tolist()
    assert bench.seconds == pytest.approx(10 / 1000 + 2 * 0.011)


def test_a_prompt_is_announced_after_its_prefill_and_the_outputs_at_the_end() -> None:
    bench = Bench()
    request = bench.add(prompt(0, 10), outputs=7)
    bench.step()
    (first,) = stored(bench.cache.take_events())
    assert first.token_ids == prompt(0, 8)
    assert first.parent_block_hash is None
    bench.finish()
    (second,) = stored(bench.cache.take_events())
    # 10 + 7 tokens, of which the last output was never computed: 4 whole pages.
    assert second.token_ids == request.tokens[8:16].tolist()
    assert second.parent_block_hash == first.block_hashes[-1]


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    bench = Bench()
    bench.add(prompt(0, 16))
    bench.finish()
    for length, cached in [(16, 12), (17, 16), (15, 12), (4, 0), (5, 4), (1, 0)]:
        request = bench.add(prompt(0, length))
        progress = bench.step()
        assert progress is not None
        assert (request.cached, progress.prefilled) == (cached, length - cached), length
        bench.finish()


def test_namespaces_do_not_share() -> None:
    bench = Bench()
    namespaces: list[dict[str, Any]] = [{}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"extra_key": "a"}]
    for repeat in (0, 12):
        for namespace in namespaces:
            request = bench.add(prompt(0, 13), **namespace)
            bench.finish()
            assert request.cached == repeat


def test_chunked_prefill_spends_the_budget_in_order_and_decodes_beside_it() -> None:
    bench = Bench(chunk=8)
    first = bench.add(prompt(0, 4), outputs=9)
    second = bench.add(prompt(100, 18), outputs=2)
    assert bench.step() == Progress(8, 0, [])
    assert (first.produced, second.computed) == (1, 4)
    before = bench.seconds
    assert bench.step() == Progress(8, 1, [])
    assert bench.seconds - before == pytest.approx(8 / 1000 + 0.011)
    assert (first.produced, second.computed, second.produced) == (2, 12, 0)
    assert bench.step() == Progress(6, 1, [])
    assert (first.produced, second.produced) == (3, 1)
    # Each chunk's pages are in the cache, and announced, as soon as they are computed.
    announced = [token for event in stored(bench.cache.take_events()) for token in event.token_ids]
    assert announced == [*prompt(0, 4), *prompt(100, 16)]
    bench.finish()


def test_max_running_requests() -> None:
    bench = Bench(max_running=2)
    requests = [bench.add(prompt(100 * number, 5), outputs=3) for number in range(3)]
    bench.step()
    assert [request.state for request in requests] == [RequestState.RUNNING] * 2 + [RequestState.WAITING]
    bench.finish()
    assert all(request.state is RequestState.FINISHED for request in requests)


def test_two_equal_prompts_at_once_are_cached_once() -> None:
    bench = Bench()
    for _ in range(2):
        bench.add(prompt(0, 12))
    bench.finish()
    assert bench.cache.total == 12
    assert len(stored(bench.cache.take_events())) == 1


def test_a_request_that_could_never_run_is_refused() -> None:
    bench = Bench(capacity=20)
    bench.add(prompt(0, 15), outputs=6)  # the last output needs no memory
    with pytest.raises(CapacityError, match="needs 24 tokens of KV cache, but a rank has 20") as caught:
        bench.add(prompt(0, 16), outputs=6)
    assert (caught.value.requested, caught.value.available) == (24, 20)
    bench.finish()


def test_memory_is_made_by_eviction_and_announced() -> None:
    bench = Bench(capacity=20)
    bench.add(prompt(0, 16), outputs=1)
    bench.finish()
    (old,) = stored(bench.cache.take_events())
    bench.add(prompt(100, 16), outputs=1)
    bench.finish()
    events = bench.cache.take_events()
    removed = [block for event in events if isinstance(event, BlockRemoved) for block in event.block_hashes]
    assert set(removed) == set(old.block_hashes)
    assert bench.cache.total == 16


def test_short_memory_sends_the_youngest_back_and_nothing_is_lost() -> None:
    bench = Bench(capacity=52)
    older = bench.add(prompt(0, 12), outputs=20)
    younger = bench.add(prompt(100, 8), outputs=20)
    answers = [older.tokens[12:].tolist(), younger.tokens[8:].tolist()]
    bench.step()
    assert younger.state is RequestState.RUNNING, "admission keeps room for a share of the outputs only"
    while not younger.retractions:
        assert bench.step()
    assert (older.state, younger.state) == (RequestState.RUNNING, RequestState.WAITING)
    assert bench.scheduler.waiting[0] is younger
    bench.finish()
    assert [older.outputs.tolist(), younger.outputs.tolist()] == answers
    assert (older.retractions, younger.retractions) == (0, 1)
    assert younger.cached == 0, "what it found at its first admission"


def test_a_request_without_outputs_only_fills_the_cache() -> None:
    bench = Bench()
    request = bench.add(prompt(0, 9), outputs=0)
    progress = bench.step()
    assert progress is not None
    assert progress.updated == [request]
    assert (request.state, request.produced, bench.cache.total) == (RequestState.FINISHED, 0, 8)
    bench.finish()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_aborted_request_gives_its_memory_back(steps: int) -> None:
    bench = Bench(chunk=4)
    request = bench.add(prompt(0, 10), outputs=50)
    other = bench.add(prompt(100, 4), outputs=2)
    for _ in range(steps):
        bench.step()
    bench.scheduler.abort(request)
    bench.finish()
    assert (request.state, other.state) == (RequestState.ABORTED, RequestState.FINISHED)
    bench.scheduler.abort(other)
    bench.finish()
    assert other.state is RequestState.FINISHED, "what is done stays done"


def test_an_abort_during_a_step_takes_effect_after_it() -> None:
    bench = Bench()
    request = bench.add(prompt(0, 10), outputs=50)
    step = bench.scheduler.plan()
    assert step is not None
    bench.scheduler.abort(request)
    bench.scheduler.commit(step)
    assert bench.step() is None
    assert request.state is RequestState.ABORTED
    assert bench.memory.private == 0


def test_a_stream_is_told_the_first_output_then_every_interval_then_the_end() -> None:
    bench = Bench()
    request = bench.add(prompt(0, 10), outputs=8, stream_every=3)
    told = []
    while progress := bench.step(most=100):
        if progress.updated:
            told.append(request.produced)
    assert told == [1, 4, 7, 8]


def test_nobody_streams_and_nothing_is_due_so_a_row_of_steps_is_one() -> None:
    bench = Bench()
    bench.add(prompt(0, 10), outputs=101)
    bench.step(most=40)
    assert bench.step(most=40) == Progress(0, 40, [])
    assert bench.step(most=25) == Progress(0, 25, [])
    progress = bench.step(most=1000)
    assert progress is not None
    assert progress.decode_steps == 35


requests = st.lists(
    st.tuples(
        st.integers(0, 3),  # family: prompts of one family share prefixes
        st.integers(1, 30),  # prompt length
        st.integers(0, 25),  # outputs
        st.integers(0, 12),  # steps before it arrives
        st.sampled_from([None, 1, 3]),  # streams
        st.booleans(),  # aborted later
    ),
    min_size=1,
    max_size=12,
)


def run(plan: list[tuple[int, int, int, int, int | None, bool]], capacity: int, most: int) -> tuple[Any, ...]:
    """What can be observed of a run: events in order, outputs, counts, duration. Requests arrive at step counts."""
    bench = Bench(capacity=capacity, chunk=16, max_running=4)
    made: list[Request] = []
    steps = 0
    arrival = 0
    pending = list(plan)
    log: list[Any] = []
    while pending or not bench.scheduler.is_idle:
        while pending and arrival + pending[0][3] <= steps:
            family, length, outputs, wait, stream, is_aborted = pending.pop(0)
            arrival += wait
            made.append(bench.add(prompt(1000 * family, length), outputs=outputs, stream_every=stream))
            if is_aborted and len(made) > 1:
                bench.scheduler.abort(made[-2])
        left = arrival + pending[0][3] - steps if pending else most
        progress = bench.step(most=max(1, min(most, left)))
        steps += max(progress.decode_steps, 1) if progress else 1
        log.append(bench.cache.take_events())
    events = [event for batch in log for event in batch]
    bench.finish()
    return (
        events,
        [(r.state, r.cached, r.produced, r.retractions, r.outputs.tolist()) for r in made],
        round(bench.seconds, 9),
    )


@given(plan=requests, capacity=st.sampled_from([56, 80, 400]), most=st.integers(2, 50))
def test_rows_of_decode_steps_change_nothing(
    plan: list[tuple[int, int, int, int, int | None, bool]], capacity: int, most: int
) -> None:
    assert run(plan, capacity, most) == run(plan, capacity, 1)


@given(plan=requests, capacity=st.sampled_from([56, 80, 400]))
def test_events_tell_exactly_what_is_held(
    plan: list[tuple[int, int, int, int, int | None, bool]], capacity: int
) -> None:
    events, *_ = run(plan, capacity, 8)
    held: set[Any] = set()
    for event in events:
        assert not isinstance(event, AllBlocksCleared)
        if isinstance(event, BlockStored):
            assert event.parent_block_hash is None or event.parent_block_hash in held
            assert not held & set(event.block_hashes)
            assert len(event.token_ids) == PAGE * len(event.block_hashes)
            held |= set(event.block_hashes)
        else:
            assert held >= set(event.block_hashes)
            held -= set(event.block_hashes)
    assert len(held) * PAGE <= capacity


@given(
    plan=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(0, 12), st.sampled_from([None, "x", "y"])),
        min_size=1,
        max_size=20,
    ),
    capacity=st.sampled_from([56, 120, 400]),
)
def test_an_index_of_the_events_predicts_what_is_found_cached(
    plan: list[tuple[int, int, int, str | None]], capacity: int
) -> None:
    bench = Bench(capacity=capacity, chunk=16)
    index = PrefixIndex(PAGE)
    for family, length, outputs, salt in plan:
        tokens = prompt(1000 * family, length)
        (match,) = index.match(tokens, cache_salt=salt) or (None,)
        request = bench.add(tokens, outputs=outputs, cache_salt=salt)
        bench.finish(most=7)
        assert request.cached == min(match.usable if match else 0, (length - 1) // PAGE) * PAGE
        if (batch := bench.cache.take_batch()) is not None:
            index.apply("engine", batch)
