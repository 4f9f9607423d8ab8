"""How busy an engine says it is, in each engine's own words."""

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from kvevents.errors import TransportError


class RankLoad(NamedTuple):
    """What one rank says of itself; None: it does not say.

    Attributes:
        running: requests in work.
        waiting: requests in its queue.
        used_tokens: KV cache in use, in tokens.
    """

    running: int
    waiting: int
    used_tokens: int | None = None


_RUNNING, _WAITING, _USED, _USAGE, _CAPACITY = "running", "waiting", "used", "usage", "capacity"

_SERIES: Mapping[bytes, str] = {
    # SGLang, python/sglang/srt/metrics/collector.py
    b"sglang:num_running_reqs": _RUNNING,
    b"sglang:num_queue_reqs": _WAITING,
    b"sglang:num_used_tokens": _USED,
    # vLLM, vllm/v1/metrics/loggers.py
    b"vllm:num_requests_running": _RUNNING,
    b"vllm:num_requests_waiting": _WAITING,
    b"vllm:kv_cache_usage_perc": _USAGE,
    b"vllm:gpu_cache_usage_perc": _USAGE,
    b"vllm:cache_config_info": _CAPACITY,
    # the simulated engine
    b"kvevents_engine_running_requests": _RUNNING,
    b"kvevents_engine_waiting_requests": _WAITING,
    b"kvevents_engine_kv_used_tokens": _USED,
}

_LINE = re.compile(
    rb"^(" + b"|".join(re.escape(name) for name in _SERIES) + rb")(?:\{([^\n]*)\})? ([^ \n]+)", re.MULTILINE
)
_LABEL = re.compile(rb'(\w+)="([^"]*)"')


class _SGLangLoad(msgspec.Struct):
    """An entry of SGLang's `/v1/loads`."""

    dp_rank: int | None = None
    num_running_reqs: int | None = None
    num_waiting_reqs: int | None = None
    num_used_tokens: int | None = None


class _SGLangLoads(msgspec.Struct):
    loads: list[_SGLangLoad]


class _OldSGLangLoad(msgspec.Struct):
    """An entry of SGLang's `/get_load`; its `num_reqs` counts the waiting ones too."""

    num_reqs: int
    num_waiting_reqs: int
    num_tokens: int | None = None
    dp_rank: int | None = None


def read_metrics(body: bytes) -> dict[int, RankLoad]:
    """The load of each rank in Prometheus' text format.

    Series of one rank that differ by other labels (SGLang has one for each tensor-parallel rank) say the same: the
    largest counts.

    Raises:
        TransportError: nothing in it says how busy the engine is.
    """
    found: dict[int, dict[str, float]] = {}
    for name, labels, text in _LINE.findall(body):
        label = dict(_LABEL.findall(labels))
        rank = _number(label.get(b"dp_rank", label.get(b"engine", b"0")))
        kind = _SERIES[name]
        value = _number(text)
        if kind == _CAPACITY:
            blocks, size = _number(label.get(b"num_gpu_blocks", b"")), _number(label.get(b"block_size", b""))
            value = None if blocks is None or size is None else blocks * size
        if rank is not None and value is not None:
            figures = found.setdefault(int(rank), {})
            figures[kind] = max(value, figures.get(kind, 0.0))
    loads = {
        rank: RankLoad(int(figures[_RUNNING]), int(figures.get(_WAITING, 0)), _used(figures))
        for rank, figures in found.items()
        if _RUNNING in figures
    }
    if not loads:
        raise TransportError("/metrics: expected the number of running requests, of SGLang or vLLM; it is not there")
    return loads


def read_sglang_loads(body: bytes) -> dict[int, RankLoad]:
    """The load of each rank in an answer of SGLang's `/v1/loads`.

    Raises:
        TransportError: it is none.
    """
    try:
        loads = msgspec.json.decode(body, type=_SGLangLoads).loads
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransportError(f"/v1/loads: {error}") from None
    return {
        load.dp_rank or 0: RankLoad(load.num_running_reqs or 0, load.num_waiting_reqs or 0, load.num_used_tokens)
        for load in loads
    }


def read_old_sglang_load(body: bytes) -> dict[int, RankLoad]:
    """The load of each rank in an answer of SGLang's `/get_load`.

    Raises:
        TransportError: it is none.
    """
    try:
        loads = msgspec.json.decode(body, type=list[_OldSGLangLoad])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransportError(f"/get_load: {error}") from None
    return {
        load.dp_rank or 0: RankLoad(
            max(0, load.num_reqs - load.num_waiting_reqs), load.num_waiting_reqs, load.num_tokens
        )
        for load in loads
    }


LOAD_PATHS: Mapping[str, Callable[[bytes], dict[int, RankLoad]]] = {
    "/metrics": read_metrics,
    "/v1/loads": read_sglang_loads,
    "/get_load": read_old_sglang_load,
}
"""Where engines say how busy they are, the best first: the last one makes new SGLang versions log a warning."""


def _used(figures: Mapping[str, float]) -> int | None:
    if _USED in figures:
        return int(figures[_USED])
    if _USAGE in figures and _CAPACITY in figures:
        return int(figures[_USAGE] * figures[_CAPACITY])
    return None


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
