"""`kvevents simulate`: a fleet in one process and in virtual time."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from kvevents.cli.duration import Duration
from kvevents.cli.figures import print_families, print_simulation
from kvevents.cli.options import Count, Rate
from kvevents.cli.output import Json, print_json
from kvevents.cli.progress import showing_progress
from kvevents.errors import ConfigError
from kvevents.server.configuration.load import load_settings
from kvevents.simulation.delivery import Travel
from kvevents.simulation.families import FamilySettings, family_report
from kvevents.simulation.simulate import SimulationSettings, run_simulation
from kvevents.simulation.traces import bundled_trace
from kvevents.simulation.virtual_fleet import SimulatedCache

POLICIES = ("round_robin", "approx", "kv", "oracle")
"""Where none is named."""

Policies = Annotated[tuple[str, ...], Parameter(negative=())]
Share = Annotated[float, Parameter(validator=validators.Number(gte=0, lte=1))]


def simulate(
    *,
    trace: Path | None = None,
    policy: Policies = POLICIES,
    engines: Count | None = None,
    capacity_share: Rate = 0.25,
    load: Rate | None = None,
    arrival_speedup: Rate | None = None,
    delay: Duration = 0.02,
    loss: Share = 0.0,
    limit: Count | None = None,
    cache: SimulatedCache = "radix",
    page_size: Count = 64,
    prefill_tokens_per_second: Rate = 20_000.0,
    seed: int = 0,
    config: Path | None = None,
    families: Annotated[bool, Parameter(negative=())] = False,
    json: Json = False,
) -> int:
    """Replay a trace through a fleet in virtual time and show how each routing policy fares.

    Caches, schedulers, event batches, index and router are the real ones; there are no sockets, no processes and no
    waiting, so that minutes of traffic take seconds and a seed always gives the same figures.
    The policy `oracle` is `kv` that asks the caches themselves, at the moment of asking, in place of the index.

    Example: `kvevents simulate --policy round_robin --policy kv --policy oracle --engines 8 --load 0.85`

    Args:
        trace: Requests to replay, a Mooncake trace (JSONL); by default 330 s of chat traffic.
        policy: Routing policies to run, in this order, each on a fresh fleet.
        engines: How many; by default 8, with --families 4.
        capacity_share: KV cache of all engines together, as a share of the distinct prompt tokens of the trace.
        load: Prompt tokens that arrive over what the fleet could compute, as if nothing were cached; by default 0.7.
            Arrivals are moved closer together, or apart, until it is so.
        arrival_speedup: In place of a load: arrivals are so much closer together than in the trace; 1 is its own pace.
        delay: From an engine's publishing of events to the router's index.
        loss: Share of the event batches that never arrive (there is no replay).
        limit: Requests to take from the trace's start; by default all.
        cache: What kind of engines: like SGLang (radix), the same with host memory of twice the size below it
            (hierarchical), or like vLLM (block_pool).
        page_size: Tokens in a page of KV cache.
        prefill_tokens_per_second: Of each engine.
        seed: Of all that is drawn.
        config: A TOML file as for `kvevents serve`: the weights of its section [routing] are those of every policy.
        families: In place of a trace: families of prompts with a common beginning, several requests in flight at any
            time or one at a time. Are all engines used, and by how many is each family computed?
        json: Print one JSON object with all figures.
    """
    routing = load_settings(config).routing
    travel = Travel(delay_s=delay, loss=loss)
    if families:
        if trace is not None or limit is not None:
            raise ConfigError("--families: expected no --trace and no --limit beside it; it makes its own requests")
        asked = FamilySettings(
            policies=policy,
            engines=engines or 4,
            cache=cache,
            page_size=page_size,
            prefill_tokens_per_s=prefill_tokens_per_second,
            travel=travel,
            routing=routing,
            seed=seed,
        )
        answer = family_report(asked)
        if json:
            print_json(answer)
        else:
            print_families(answer)
        return 0
    settings = SimulationSettings(
        trace=trace or bundled_trace(),
        limit=limit,
        policies=policy,
        engines=engines or 8,
        cache=cache,
        page_size=page_size,
        capacity_share=capacity_share,
        prefill_tokens_per_s=prefill_tokens_per_second,
        load=load,
        arrival_speedup=arrival_speedup,
        travel=travel,
        routing=routing,
        seed=seed,
    )
    with showing_progress() as progress:
        report = run_simulation(settings, progress)
    if json:
        print_json(report)
    else:
        print_simulation(report)
    return 0
