"""How busy an engine says it is."""

import pytest

from kvevents.errors import TransportError
from kvevents.server.fleet.load import (
    LOAD_PATHS,
    RankLoad,
    read_metrics,
    read_old_sglang_load,
    read_sglang_loads,
)

SGLANG = b"""# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="1"} 4.0
sglang:num_running_reqs_total 100
sglang:num_queue_reqs{model_name="m"} 3.0
sglang:num_used_tokens{model_name="m"} 1234.0
"""

VLLM = b"""vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="None"} 1.0
"""

OURS = b"""kvevents_engine_running_requests{dp_rank="1"} 7.0
kvevents_engine_waiting_requests{dp_rank="1"} 0.0
kvevents_engine_kv_used_tokens{dp_rank="1"} 640.0
"""


@pytest.mark.parametrize(
    ("body", "loads"),
    [
        (SGLANG, {0: RankLoad(4, 3, 1234)}),
        (VLLM, {0: RankLoad(2, 1, 8000), 1: RankLoad(5, 0, None)}),
        (OURS, {1: RankLoad(7, 0, 640)}),
        (b"vllm:num_requests_running 9\n", {0: RankLoad(9, 0, None)}),
        (b'sglang:num_running_reqs{dp_rank="2"} 1e1\n', {2: RankLoad(10, 0, None)}),
    ],
)
def test_metrics_of_every_engine(body: bytes, loads: dict[int, RankLoad]) -> None:
    assert read_metrics(body) == loads


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"process_cpu_seconds_total 1\n",
        b"vllm:num_requests_running NaN\n",
        b"vllm:num_requests_running -1\n",
        b"vllm:num_requests_running +Inf\n",
        b'vllm:num_requests_running{engine="x"} 1\n',
        b"vllm:num_requests_waiting 1\n",
        b" vllm:num_requests_running 1\n",
    ],
)
def test_metrics_that_do_not_say_it(body: bytes) -> None:
    with pytest.raises(TransportError, match="/metrics: expected the number of running requests"):
        read_metrics(body)


def test_sglang_says_it_in_two_ways() -> None:
    new = b'{"loads": [{"dp_rank": 1, "num_running_reqs": 2, "num_waiting_reqs": 3, "num_used_tokens": 4, "x": 1}]}'
    assert read_sglang_loads(new) == {1: RankLoad(2, 3, 4)}
    old = b'[{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 3, "num_tokens": 9, "ts_tic": 1.0}]'
    assert read_old_sglang_load(old) == {0: RankLoad(2, 3, 9)}


@pytest.mark.parametrize("path", ["/v1/loads", "/get_load"])
@pytest.mark.parametrize("body", [b"", b"[", b'{"a": 1}', b'[{"num_reqs": "x"}]', b"\xff", b"[" * 100_000])
def test_answers_that_are_none(path: str, body: bytes) -> None:
    with pytest.raises(TransportError, match=path):
        LOAD_PATHS[path](body)
