"""The figures of a demo or a simulation, as they are shown and printed as JSON."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from kvevents.simulation.announcements import EventFigures
from kvevents.simulation.comparison import RankComparison
from kvevents.simulation.delivery import DeliveryFigures
from kvevents.simulation.replay import Outcome

LATE_S = 0.5
"""When 1 % of the requests are sent later than this, in trace time, the machine does not keep pace."""


class ReplayFigures(msgspec.Struct, kw_only=True):
    """One replay under one policy, by processes or simulated. Times are trace time, tokens of requests that succeeded.

    Attributes:
        policy: by which the router chose.
        requests: sent.
        failures: requests without a complete answer.
        failure_reasons: how often each came.
        prompt_tokens: in all prompts.
        cached_tokens: of them, found cached, as the engines reported.
        cached_share: cached_tokens over prompt_tokens.
        recomputed_tokens: computed although some worker held them when the request was sent.
        first_token_p50_s: time to first token, median; None when nothing came.
        first_token_p90_s: the same, 90th percentile.
        first_token_p99_s: the same, 99th percentile.
        prefill_tokens: computed, by worker.
        worst_prefill: the busiest worker's prefill over the mean.
        took_s: real seconds.
        index: the router's index against each engine rank that is still there.
    """

    policy: str
    requests: int
    failures: int
    failure_reasons: dict[str, int]
    prompt_tokens: int
    cached_tokens: int
    cached_share: float
    recomputed_tokens: int
    first_token_p50_s: float | None
    first_token_p90_s: float | None
    first_token_p99_s: float | None
    prefill_tokens: dict[str, int]
    worst_prefill: float
    took_s: float
    index: list[RankComparison]

    @property
    def differences(self) -> int:
        """Blocks in which the index and the engines differ."""
        return sum(rank.differences for rank in self.index)


class PolicyFigures(ReplayFigures, kw_only=True):
    """One replay through processes.

    Attributes:
        lost_engines: what became of engines that ended in the middle.
        sent_late_p99_s: how late requests were sent, 99th percentile.
        kept_pace: whether that is little enough for the times to be right.
        events: what was announced.
    """

    lost_engines: list[str]
    sent_late_p99_s: float
    kept_pace: bool
    events: EventFigures


class SimulatedFigures(ReplayFigures, kw_only=True):
    """One replay in virtual time.

    Attributes:
        expected_share: prompt tokens that the router expected to be found cached, over all.
        waited_p50_s: time to first token beyond the computing of the prompt itself, median.
        waited_p99_s: the same, 99th percentile.
        waiting_mean: requests that a new one finds waiting in the fleet, on average.
        waiting_most: the most that one found.
        busy_share: time that the engines computed prompts, over all their time.
        events: what was announced.
    """

    expected_share: float
    waited_p50_s: float | None
    waited_p99_s: float | None
    waiting_mean: float
    waiting_most: int
    busy_share: float
    events: DeliveryFigures


class SimulationReport(msgspec.Struct, kw_only=True):
    """A trace simulated under several policies.

    Attributes:
        trace: file name of the trace.
        broken_lines: lines of it that were skipped.
        requests: simulated under each policy.
        prompt_tokens: in all prompts.
        distinct_tokens: in all distinct blocks of them: the working set.
        span_s: from the first arrival to the last.
        arrival_speedup: how much closer together than in the trace the requests come.
        load: prompt tokens that arrive over what the fleet could compute, as if nothing were cached.
        engines: of one rank each.
        page_size: tokens in a page.
        cache_tokens: KV cache of each engine.
        prefill_tokens_per_s: of each engine.
        delay_s: from an engine's publishing to the router's index.
        loss: share of the event batches that never arrived.
        seed: of all that is drawn.
        endless_cached_share: of prompt_tokens, what one endless cache that knows of each request at once would find.
        policies: the figures, in the order they were run.
    """

    trace: str
    broken_lines: list[int]
    requests: int
    prompt_tokens: int
    distinct_tokens: int
    span_s: float
    arrival_speedup: float
    load: float
    engines: int
    page_size: int
    cache_tokens: int
    prefill_tokens_per_s: float
    delay_s: float
    loss: float
    seed: int
    endless_cached_share: float
    policies: list[SimulatedFigures]


class DemoReport(msgspec.Struct, kw_only=True):
    """A trace under several policies.

    Attributes:
        trace: file name of the trace.
        broken_lines: lines of it that were skipped.
        requests: replayed under each policy.
        span_s: from the first arrival to the last, trace time.
        workers: engines.
        dp_size: ranks of each.
        page_size: tokens in a page.
        cache_tokens: KV cache of each rank.
        prefill_tokens_per_s: of each rank, in trace time.
        speed: trace seconds per real second.
        policies: the figures, in the order they were run.
        cached_gain: cached tokens under the last policy over the first; None when the first found none.
        differences: blocks in which an index and the engines differ, over all policies.
    """

    trace: str
    broken_lines: list[int]
    requests: int
    span_s: float
    workers: int
    dp_size: int
    page_size: int
    cache_tokens: int
    prefill_tokens_per_s: float
    speed: float
    policies: list[PolicyFigures]
    cached_gain: float | None
    differences: int


def policy_figures(
    policy: str,
    outcomes: Sequence[Outcome],
    *,
    workers: Sequence[str],
    speed: float,
    took_s: float,
    lost_engines: list[str],
    events: EventFigures,
    index: list[RankComparison],
) -> PolicyFigures:
    """Sum up one replay.

    Args:
        policy: its name.
        outcomes: of every request.
        workers: ids of all workers, those that got nothing too.
        speed: trace seconds per real second; turns measured times into trace time.
        took_s: real seconds.
        lost_engines: obituaries.
        events: what was announced.
        index: the comparison at the end.
    """
    late_s = percentile([outcome.sent_late_s * speed for outcome in outcomes], 99) or 0.0
    return PolicyFigures(
        **_sums(outcomes, workers=workers, speed=speed),
        policy=policy,
        lost_engines=lost_engines,
        sent_late_p99_s=late_s,
        kept_pace=late_s <= LATE_S,
        took_s=took_s,
        events=events,
        index=index,
    )


def simulated_figures(
    policy: str,
    outcomes: Sequence[Outcome],
    *,
    workers: Sequence[str],
    prefill_tokens_per_s: float,
    waiting: Sequence[int],
    busy_share: float,
    took_s: float,
    events: DeliveryFigures,
    index: list[RankComparison],
) -> SimulatedFigures:
    """Sum up one simulation.

    Args:
        policy: its name.
        outcomes: of every request.
        workers: names of all engines, those that got nothing too.
        prefill_tokens_per_s: of each.
        waiting: requests that each request found waiting.
        busy_share: time that the engines computed prompts, over all their time.
        took_s: real seconds.
        events: what was announced.
        index: the comparison at the end.
    """
    sums = _sums(outcomes, workers=workers, speed=1.0)
    expected_tokens = sum(outcome.expected_tokens for outcome in outcomes if outcome.error is None)
    waited_s = [
        outcome.first_token_s - (outcome.prompt_tokens - outcome.cached_tokens) / prefill_tokens_per_s
        for outcome in outcomes
        if outcome.first_token_s is not None
    ]
    return SimulatedFigures(
        **sums,
        policy=policy,
        expected_share=expected_tokens / (sums["prompt_tokens"] or 1),
        waited_p50_s=percentile(waited_s, 50),
        waited_p99_s=percentile(waited_s, 99),
        waiting_mean=sum(waiting) / (len(waiting) or 1),
        waiting_most=max(waiting, default=0),
        busy_share=busy_share,
        took_s=took_s,
        events=events,
        index=index,
    )


def _sums(outcomes: Sequence[Outcome], *, workers: Sequence[str], speed: float) -> dict[str, Any]:
    """What the outcomes of a replay come to, by the names of `ReplayFigures`."""
    answered = [outcome for outcome in outcomes if outcome.error is None]
    prompt_tokens = sum(outcome.prompt_tokens for outcome in answered)
    cached_tokens = sum(outcome.cached_tokens for outcome in answered)
    prefill = dict.fromkeys(workers, 0)
    for outcome in answered:
        worker = outcome.worker or "unknown"
        prefill[worker] = prefill.get(worker, 0) + outcome.prompt_tokens - outcome.cached_tokens
    first_token_s = [outcome.first_token_s * speed for outcome in answered if outcome.first_token_s is not None]
    computed = sum(prefill.values())
    return {
        "requests": len(outcomes),
        "failures": len(outcomes) - len(answered),
        "failure_reasons": dict(Counter(outcome.error for outcome in outcomes if outcome.error is not None)),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "cached_share": cached_tokens / prompt_tokens if prompt_tokens else 0.0,
        "recomputed_tokens": sum(max(0, outcome.held_tokens - outcome.cached_tokens) for outcome in answered),
        **{f"first_token_p{percent}_s": percentile(first_token_s, percent) for percent in (50, 90, 99)},
        "prefill_tokens": prefill,
        "worst_prefill": max(prefill.values()) * len(prefill) / computed if computed else 1.0,
    }


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that at least `percent` of the values do not exceed; None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
