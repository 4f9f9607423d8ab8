"""vLLM's scheduler: who computes what, which blocks they take for it, and when that is announced."""

import pytest

from kvevents.engine.request import RequestState
from kvevents.engine.scheduler import Progress, QueueFullError
from kvevents.engine.vllm.scheduler import VllmScheduler
from kvevents.errors import CapacityError
from kvevents.events import BlockStored
from vllm_bench import TIMING, VllmBench, shape


def prompt(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def shapes(bench: VllmBench) -> list[list[str]]:
    """Published batches, in letters; forgets them."""
    batches, bench.batches = bench.batches, []
    return [[shape(event) for event in batch] for batch in batches]


def test_nothing_to_do() -> None:
    bench = VllmBench()
    assert bench.scheduler.is_idle
    assert bench.step() is None


def test_prefill_gives_the_first_output_and_each_decode_step_one_more() -> None:
    bench = VllmBench()
    request = bench.add(prompt(0, 10), outputs=3)
    assert bench.scheduler.pending_tokens == 13
    assert bench.step() == Progress(prefilled=10, decode_steps=0, updated=[])
    assert (request.produced, request.computed, bench.scheduler.pending_tokens) == (1, 10, 3)
    assert bench.step() == Progress(prefilled=0, decode_steps=1, updated=[])
    assert bench.step() == Progress(prefilled=0, decode_steps=1, updated=[request])
    assert request.state is RequestState.FINISHED
    assert request.outputs.tolist() == request.tokens[10:].tolist()
    assert bench.seconds == pytest.approx(10 / 1000 + 2 * 0.011)
    assert (bench.scheduler.used, bench.cache.total) == (12, 12)


def test_blocks_that_outputs_fill_are_published_too_but_the_last_output_never_is() -> None:
    bench = VllmBench()
    request = bench.add(prompt(0, 10), outputs=7)
    bench.finish()
    first, second, third = bench.events
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert isinstance(third, BlockStored)
    assert first.token_ids == prompt(0, 8)
    assert second.token_ids == request.tokens[8:12].tolist()
    assert second.parent_block_hash == first.block_hashes[-1]
    # 10 + 7 tokens, of which the last was never computed: 4 blocks.
    assert third.token_ids == request.tokens[12:16].tolist()
    assert shapes(bench) == [["S2"], ["S1"], ["S1"]]


def test_the_last_token_of_a_prompt_is_always_computed_and_its_block_copied() -> None:
    bench = VllmBench()
    bench.add(prompt(0, 16), outputs=1)
    bench.finish()
    assert shapes(bench) == [["S4"]]
    for length, cached, announced in [(16, 12, [["S1"]]), (17, 16, []), (15, 12, []), (4, 0, [["S1"]]), (1, 0, [])]:
        request = bench.add(prompt(0, length), outputs=1)
        progress = bench.step()
        assert progress is not None
        assert (request.cached, progress.prefilled) == (cached, length - cached), length
        assert shapes(bench) == announced


def test_a_long_prompt_takes_and_publishes_blocks_chunk_by_chunk() -> None:
    bench = VllmBench(blocks=4, max_tokens=8)
    bench.add(prompt(0, 16), outputs=1)
    bench.finish()
    assert shapes(bench) == [["S2"], ["S2"]]
    bench.add(prompt(100, 15), outputs=2)
    bench.finish()
    # The tail of the first prompt goes first; the last block is filled by the first output.
    assert shapes(bench) == [["R", "R", "S2"], ["R", "R", "S1"], ["S1"]]


def test_budget_goes_to_running_requests_first_and_then_down_the_queue() -> None:
    bench = VllmBench(max_tokens=8)
    first = bench.add(prompt(0, 4), outputs=9)
    second = bench.add(prompt(100, 18), outputs=2)
    third = bench.add(prompt(200, 2), outputs=2)
    assert bench.step() == Progress(8, 0, [])
    assert (first.produced, second.computed, third.state) == (1, 4, RequestState.WAITING)
    before = bench.seconds
    assert bench.step() == Progress(7, 1, [])
    assert bench.seconds - before == pytest.approx(7 / 1000 + 0.011)
    assert (first.produced, second.computed) == (2, 11)
    assert bench.step() == Progress(7, 1, [])
    assert (first.produced, second.produced, third.state) == (3, 1, RequestState.WAITING)
    assert bench.step() == Progress(2, 1, [second])
    assert third.produced == 1
    bench.finish()


def test_a_request_admitted_later_in_a_step_hits_what_an_earlier_one_will_compute() -> None:
    bench = VllmBench()
    first = bench.add(prompt(0, 12))
    second = bench.add(prompt(0, 12))
    assert bench.step() == Progress(12 + 4, 0, [])
    assert (first.cached, second.cached) == (0, 8)
    # The third block is copied: the second request computes the last token of its prompt itself.
    assert shapes(bench) == [["S3", "S1"]]
    assert bench.cache.total == 16
    bench.finish()


def test_nobody_overtakes_a_request_that_finds_no_room() -> None:
    bench = VllmBench(blocks=6)
    bench.add(prompt(0, 16), outputs=3)
    large = bench.add(prompt(100, 12), outputs=2)
    small = bench.add(prompt(200, 4), outputs=2)
    bench.step()
    assert [request.state for request in (large, small)] == [RequestState.WAITING] * 2
    bench.finish()
    assert large.retractions == small.retractions == 0


def test_hits_that_wait_in_the_queue_are_no_room() -> None:
    bench = VllmBench(blocks=6)
    bench.add(prompt(0, 12), outputs=1)
    bench.finish()
    running = bench.add(prompt(100, 11), outputs=10)
    bench.step()
    # Three blocks are free, and all of them are hits: none is left for the fourth.
    waiting = bench.add(prompt(0, 13), outputs=1)
    bench.step()
    assert (waiting.state, waiting.cached) == (RequestState.WAITING, None)
    bench.scheduler.abort(running)
    bench.finish()
    assert waiting.cached == 12


def test_max_running_requests() -> None:
    bench = VllmBench(max_running=2)
    requests = [bench.add(prompt(100 * number, 5), outputs=3) for number in range(3)]
    bench.step()
    assert bench.scheduler.running == requests[:2]
    assert bench.scheduler.waiting == requests[2:]
    bench.finish()
    assert all(request.state is RequestState.FINISHED for request in requests)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_youngest_is_preempted_keeps_its_outputs_and_finds_its_blocks_again(asynchronous: bool) -> None:
    bench = VllmBench(blocks=8, asynchronous=asynchronous)
    older = bench.add(prompt(0, 12), outputs=14)
    younger = bench.add(prompt(100, 12), outputs=8)
    answers = [older.tokens[12:].tolist(), younger.tokens[12:].tolist()]
    while not younger.retractions:
        assert bench.step()
    produced = younger.produced
    assert (older.state, younger.state) == (RequestState.RUNNING, RequestState.WAITING)
    assert bench.scheduler.waiting == [younger]
    assert produced > 0
    bench.finish()
    assert [older.outputs.tolist(), younger.outputs.tolist()] == answers
    assert (older.retractions, younger.retractions, bench.scheduler.retractions) == (0, 1, 1)
    assert younger.cached == 0, "what it found at its first admission"


def test_a_request_can_be_its_own_victim() -> None:
    bench = VllmBench(blocks=3)
    request = bench.add(prompt(0, 5), outputs=7)
    held = bench.cache.take(1)  # by somebody else
    while (step := bench.scheduler.plan()) is not None:
        bench.scheduler.commit(step)
    assert (request.state, request.produced, request.retractions) == (RequestState.WAITING, 4, 1)
    assert bench.cache.free_blocks == 2
    assert bench.scheduler.plan() is None
    bench.cache.release(held)
    bench.finish()
    assert (request.produced, request.retractions) == (7, 1)


@pytest.mark.parametrize(
    ("asynchronous", "announced"),
    [
        (False, [["R", "R", "S1"], ["S1"], ["R"], ["S1"], ["R"]]),
        (True, [["R", "R", "S1"], ["R", "S1"], ["R", "S1"]]),
    ],
)
def test_asynchronous_scheduling_takes_a_step_earlier_and_publishes_what_outputs_fill_a_step_later(
    asynchronous: bool, announced: list[list[str]]
) -> None:
    bench = VllmBench(blocks=4, asynchronous=asynchronous)
    bench.add(prompt(100, 16), outputs=1)
    bench.finish()
    bench.batches.clear()
    # Tokens 8 and 12 fill a block each, tokens 9 and 13 are the first of one.
    bench.add(prompt(0, 6), outputs=8)
    bench.finish()
    assert shapes(bench) == announced


def test_what_the_last_step_fills_is_published_when_it_returns() -> None:
    for asynchronous in (False, True):
        bench = VllmBench(asynchronous=asynchronous)
        bench.add(prompt(0, 6), outputs=3)
        bench.finish()
        assert shapes(bench) == [["S1"], ["S1"]]


def test_a_request_that_could_never_run_is_refused() -> None:
    bench = VllmBench(blocks=5)
    bench.add(prompt(0, 15), outputs=6)  # the last output needs no memory
    with pytest.raises(CapacityError, match="needs 24 tokens of KV cache, but a rank has 20") as caught:
        bench.add(prompt(0, 16), outputs=6)
    assert (caught.value.requested, caught.value.available) == (24, 20)
    bench.finish()


def test_a_queue_that_is_full_refuses() -> None:
    bench = VllmBench()
    bench.scheduler = VllmScheduler(bench.cache, TIMING, max_tokens=8, max_running=1, max_waiting=1)
    bench.add(prompt(0, 4))
    with pytest.raises(QueueFullError, match="1 requests are waiting"):
        bench.add(prompt(0, 4))
    bench.step()
    bench.add(prompt(0, 4))
    bench.finish()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_request_without_outputs_only_fills_the_cache(asynchronous: bool) -> None:
    bench = VllmBench(asynchronous=asynchronous)
    request = bench.add(prompt(0, 9), outputs=0)
    assert bench.step() == Progress(9, 0, [request])
    assert request.state is RequestState.FINISHED
    assert bench.cache.total == 8
    bench.finish()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_aborted_request_gives_its_blocks_back_whatever_it_was_at(asynchronous: bool) -> None:
    bench = VllmBench(asynchronous=asynchronous, max_running=2)
    requests = [bench.add(prompt(100 * number, 6), outputs=9) for number in range(4)]
    bench.step()
    for request in (requests[0], requests[2]):
        bench.scheduler.abort(request)
    bench.scheduler.abort(requests[0])
    bench.step()
    assert [request.state for request in requests[::2]] == [RequestState.ABORTED] * 2
    assert requests[0].produced == 1
    bench.finish()
    assert [request.state for request in requests[1::2]] == [RequestState.FINISHED] * 2


def test_a_stream_is_told_as_often_as_it_asks() -> None:
    bench = VllmBench()
    request = bench.add(prompt(0, 6), outputs=8, stream_every=3)
    told = []
    while progress := bench.step(most=40):
        if progress.updated:
            told.append(request.produced)
    assert told == [1, 4, 7, 8]


def test_rows_of_decode_steps_end_before_something_is_announced() -> None:
    bench = VllmBench()
    request = bench.add(prompt(0, 5), outputs=12)
    bench.step()
    rows = []
    while (step := bench.scheduler.plan(most=3)) is not None:
        rows.append(step.repeats)
        bench.scheduler.commit(step, repeats=step.repeats)
    # 5 tokens and 12 outputs in blocks of 4: the steps that compute tokens 8, 9, 12, 13 and 16 have news.
    assert rows == [2, 1, 1, 2, 1, 1, 2, 1]
    assert request.produced == 12
