"""The block pool and its scheduler against recorded runs of vLLM 0.32.

One request at a time, every batch is compared byte by byte. Where several requests are in flight, the recordings do
not say in which step each arrived, so the order of events is not determined. What is compared there: which pages each
request announces (all that it computed and filled, whoever else has them), as counts of stores by page; that there are
never more copies than blocks; and what the requests found cached, all in all.
"""

from collections import Counter
from collections.abc import Iterable

import pytest

from kvevents.caches import BlockPoolCache
from kvevents.engine.request import Request
from kvevents.engine.timing import TimingModel
from kvevents.engine.vllm.scheduler import VllmScheduler
from kvevents.events import BlockHash, BlockRemoved, BlockStored, KVCacheEvent
from kvevents.wire import decode_batch
from vllm_trace import Run, recorded_run

CONCURRENT = ["mooncake_edge_A_conc8", "mooncake_conv_A_conc4"]
SEQUENTIAL = ["mooncake_edge_A_seq", "mooncake_edge_A_async_seq", "mooncake_conv_A_seq"]


class Engine:
    """A cache and a scheduler as a run's configuration describes them."""

    def __init__(self, run: Run) -> None:
        config = run.config
        self.cache = BlockPoolCache(
            num_blocks=config["num_gpu_blocks_override"],
            page_size=config["block_size"],
            hash_seed=config["PYTHONHASHSEED"],
        )
        self.scheduler = VllmScheduler(
            self.cache,
            TimingModel(),
            max_tokens=config["max_num_batched_tokens"],
            max_running=1024,
            asynchronous=config["async_scheduling"],
        )
        self.answers = run.answers
        self.prompts = run.prompts

    def request(self, number: int) -> Request:
        prompt = self.prompts[number]
        tokens = prompt[:]
        tokens.extend(self.answers[number].outputs)
        return Request(id=str(number), tokens=tokens, prompt_length=len(prompt))


def timeless(payload: bytes) -> bytes:
    """A batch without its time: the eight bytes after the marks of an array and of a float."""
    assert payload[:2] == b"\x93\xcb"
    return payload[10:]


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_a_sequential_run_is_reproduced_byte_by_byte(name: str) -> None:
    run = recorded_run(name)
    engine = Engine(run)
    recorded = iter(run.published)
    for number, answer in run.answers.items():
        request = engine.request(number)
        engine.scheduler.add(request)
        while (step := engine.scheduler.plan(most=40)) is not None:
            engine.scheduler.commit(step, repeats=step.repeats)
            if (batch := engine.cache.take_batch(ts=0.0)) is not None:
                assert timeless(batch) == timeless(next(recorded)), f"request {number}"
        assert request.cached == answer.cached_tokens, f"request {number}"
        engine.scheduler.check_integrity()
    assert next(recorded, None) is None


class Ledger:
    """How often each page was stored, and how many copies of it are held."""

    def __init__(self) -> None:
        self.stores: Counter[BlockHash] = Counter()
        self.held: Counter[BlockHash] = Counter()
        self.peak = 0

    def follow(self, events: Iterable[KVCacheEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    self.stores.update(event.block_hashes)
                    self.held.update(event.block_hashes)
                case BlockRemoved(block_hashes=[block]):
                    self.held[block] -= 1
                    assert self.held[block] >= 0
        self.peak = max(self.peak, self.held.total())


def computed(engine: Engine, cached_tokens: dict[int, int]) -> Counter[BlockHash]:
    """How often each page was computed by a request that did not find it; the last output is never computed."""
    pages: Counter[BlockHash] = Counter()
    for number, cached in cached_tokens.items():
        chain = engine.cache.chain(engine.request(number).view[:-1])
        pages.update(block % 2**64 for block in chain.ids[cached // engine.cache.page_size :])
    return pages


@pytest.mark.parametrize("name", CONCURRENT)
def test_a_concurrent_run_announces_what_each_request_computed(name: str) -> None:
    run = recorded_run(name)
    engine = Engine(run)
    recorded, ours = Ledger(), Ledger()
    for payload in run.published:
        recorded.follow(decode_batch(payload).events)
    found = {number: answer.cached_tokens for number, answer in run.answers.items()}
    assert recorded.stores == computed(engine, found)

    coming = list(run.prompts)
    requests: list[Request] = []
    in_flight = 0
    while coming or in_flight:
        for number in coming[: run.config["concurrency"] - in_flight]:
            coming.pop(0)
            in_flight += 1
            requests.append(engine.request(number))
            engine.scheduler.add(requests[-1])
        step = engine.scheduler.plan()
        assert step is not None
        in_flight -= len(engine.scheduler.commit(step).updated)
        ours.follow(engine.cache.take_events())
    engine.scheduler.check_integrity()
    found_by_ours = {int(request.id): request.cached or 0 for request in requests}
    assert ours.stores == computed(engine, found_by_ours)
    assert max(ours.peak, recorded.peak) < run.config["num_gpu_blocks_override"]
    assert sum(found_by_ours.values()) == pytest.approx(sum(found.values()), rel=0.005)
