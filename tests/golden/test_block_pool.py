"""The block pool and its scheduler against recorded runs of vLLM 0.32: every batch, byte by byte."""

import pytest

from kvevents.caches import BlockPoolCache
from kvevents.engine.request import Request
from kvevents.engine.timing import TimingModel
from kvevents.engine.vllm.scheduler import VllmScheduler
from vllm_trace import Run, recorded_run

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
