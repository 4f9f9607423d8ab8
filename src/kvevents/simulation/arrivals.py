"""When the requests of a trace arrive, and what the trace asks of whoever takes them."""

import itertools
import random
from collections.abc import Sequence

from kvevents.simulation.traces import TraceRequest

BUCKET_S = 3.0
"""Arrivals of Mooncake's traces were recorded in buckets of this width."""


def spread(requests: Sequence[TraceRequest], seed: int) -> list[float]:
    """Arrival times in seconds, those that were recorded as one moment spread over the time to the next.

    That is at most `BUCKET_S`. Times within are drawn evenly, as those of a Poisson process are, and order is kept.
    """
    dice = random.Random(seed)  # noqa: S311 - a simulation
    buckets = [list(group) for _, group in itertools.groupby(requests, key=lambda request: request.arrival_s)]
    starts = [bucket[0].arrival_s for bucket in buckets]
    times: list[float] = []
    for bucket, start, after in itertools.zip_longest(buckets, starts, starts[1:]):
        width = BUCKET_S if after is None else min(BUCKET_S, after - start)
        times += [start] if len(bucket) == 1 else sorted(start + width * dice.random() for _ in bucket)
    return times


def working_set(requests: Sequence[TraceRequest]) -> int:
    """Tokens of all distinct blocks of all prompts."""
    sizes: dict[int, int] = {}
    for request in requests:
        for number, block in enumerate(request.hash_ids):
            size = min(request.block, request.input_length - number * request.block)
            sizes[block] = max(size, sizes.get(block, 0))
    return sum(sizes.values())


def endless_cache(requests: Sequence[TraceRequest], page_size: int) -> int:
    """Prompt tokens that one cache of all engines, without end and knowing of each request at once, would find."""
    seen: set[int] = set()
    found = 0
    for request in requests:
        known = itertools.takewhile(seen.__contains__, request.hash_ids)
        tokens = min(sum(1 for _ in known) * request.block, request.input_length - 1)
        found += tokens // page_size * page_size
        seen.update(request.hash_ids)
    return found
