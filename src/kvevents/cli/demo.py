"""`kvevents demo`: the whole road on a real trace."""

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import uvloop
from cyclopts import Parameter

from kvevents.cli.figures import print_report
from kvevents.cli.options import Count, Port, Rate
from kvevents.cli.output import Json, print_json
from kvevents.cli.progress import showing_progress
from kvevents.engine.config import CacheName
from kvevents.simulation.demo import DemoSettings, run_demo
from kvevents.simulation.traces import bundled_trace

Policies = Annotated[
    tuple[Literal["round_robin", "random", "least_loaded", "approx", "kv"], ...], Parameter(negative=())
]


def demo(
    *,
    workers: Count = 4,
    trace: Path | None = None,
    limit: Count = 500,
    speed: Rate = 10.0,
    cache: CacheName = "radix",
    page_size: Count = 64,
    dp_size: Count = 1,
    policy: Policies = ("round_robin", "kv"),
    cache_tokens: Count | None = None,
    prefill_tokens_per_second: Rate | None = None,
    port: Port = 0,
    json: Json = False,
) -> int:
    """Replay a real trace through engines and a router, round robin and KV-aware, and show what changed.

    For each policy it starts fresh engines and a router as processes of their own, sends the trace's requests
    through HTTP at the trace's pace, and at the end compares the router's index with what the engines hold.
    Times are reported in trace time: `--speed` divides arrival gaps and engine times alike.

    Example: `kvevents demo --limit 50`

    Exit code 1: the index differs from the engines.

    Args:
        workers: Engines.
        trace: Requests to replay, a Mooncake trace (JSONL); by default 330 s of chat traffic.
        limit: Requests to take from its start.
        speed: Trace seconds per real second.
        cache: What kind of engines: block_pool are like vLLM, all others like SGLang, for models with full attention
            (radix), sliding windows (swa) or state-space layers (mamba) besides, or both (unified), or with host
            memory and an external pool below the GPU (hierarchical). Hybrid ones announce their groups, so that the
            router knows how much can be reused.
        page_size: Tokens in a page of KV cache.
        dp_size: Data-parallel ranks of each engine.
        policy: Routing policies to run, in this order.
        cache_tokens: KV cache of each rank; by default all that the run needs.
        prefill_tokens_per_second: Of each rank; by default 1.5 times the mean demand of the trace.
        port: Where the router listens; 0 takes a free one.
        json: Print one JSON object with all figures.
    """
    settings = DemoSettings(
        trace=trace or bundled_trace(),
        limit=limit,
        workers=workers,
        dp_size=dp_size,
        cache=cache,
        page_size=page_size,
        speed=speed,
        policies=policy,
        cache_tokens=cache_tokens,
        prefill_tokens_per_s=prefill_tokens_per_second,
        port=port,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, showing_progress() as progress:
        report = runner.run(run_demo(settings, progress))
    if json:
        print_json(report)
    else:
        print_report(report)
    return 1 if report.differences else 0
