"""How much does it bring to route by what caches hold, and how much is there to be had?

    python -m benchmarks.routing [--traces DIR]

`kvevents simulate`: eight engines in virtual time, each computing 20,000 prompt tokens a second, whose caches together
have room for a quarter of a trace's distinct prompt tokens. Caches, schedulers, event batches, index and router are the
real ones; events reach the router 20 ms after an engine publishes them. The load is what arrives, in prompt tokens,
over what the engines could compute if nothing were cached; arrivals of a trace are moved closer together until it is
so. Those that were recorded as one moment (of 3 s) are spread over it at random.

The oracle is the policy `kv`, with its cost and its books of what is in flight as they are, that asks the caches
themselves, at the moment of asking, in place of an index that events have built. "Endless" is the looser bound: the
share that one cache for all engines would find that forgets nothing and knows each prompt from the moment it arrives.
Waiting is not in the bound: with less reuse and more balance a time can be better.

Traces: `mooncake_fast25_conversation_000-040min.jsonl` (conversation), `mooncake_arxiv_first1000.jsonl` (arXiv), and of
`claude_code_kvtester_0001-0450.jsonl.xz` the first 80 sessions, 40 minutes, prompts up to 200 k tokens (agents; each
has one request at a time, the next is sent when the one before has ended). They are looked for in the folder
`shared/traces` beside the repository, or in the one that `--traces` names. Where the first is missing, its beginning
takes its place, the 1,000 requests that are part of the repository; where another is, it is left out.

Families: four engines, prompts of 2,176 tokens of which a family shares the first 2,048, so many in flight at any time.
A family is cold on an engine that has not met it.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.agent_trace import read_agent_trace
from benchmarks.results import save
from kvevents.simulation.delivery import Travel
from kvevents.simulation.families import FamilySettings, family_report
from kvevents.simulation.replay import Outcome
from kvevents.simulation.report import SimulatedFigures
from kvevents.simulation.simulate import SimulationSettings, simulate_trace
from kvevents.simulation.traces import BUNDLED, Trace, read_trace

ROOT = Path(__file__).parents[1]
POLICIES = ("round_robin", "least_loaded", "approx", "kv", "oracle")
LOADS = (0.5, 0.7, 0.85)
LOAD = 0.7
"""Where there is one load only."""
TRAVELS = (
    Travel(delay_s=0.0),
    Travel(delay_s=0.02),
    Travel(delay_s=0.2),
    Travel(delay_s=2.0),
    Travel(delay_s=20.0),
    Travel(delay_s=0.02, loss=0.001),
    Travel(delay_s=0.02, loss=0.01),
)


KEPT = (
    "cached_share",
    "expected_share",
    "first_token_p50_s",
    "first_token_p90_s",
    "first_token_p99_s",
    "waited_p99_s",
    "worst_prefill",
    "waiting_mean",
    "busy_share",
    "took_s",
)
"""Of a policy's figures."""


class Notes:
    """Progress on stderr, a line a policy."""

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)

    def begin(self, policy: str, requests: int) -> None:
        self.note(f"  {policy}: {requests} requests")

    def advance(self, outcome: Outcome) -> None:
        """Nothing."""


def traces(folder: Path) -> dict[str, Trace]:
    """The traces that are there, by the name in the tables."""
    files: dict[str, tuple[str, Callable[[Path], Trace]]] = {
        "conversation": ("mooncake_fast25_conversation_000-040min.jsonl", read_trace),
        "arXiv": ("mooncake_arxiv_first1000.jsonl", read_trace),
        "agents": (
            "claude_code_kvtester_0001-0450.jsonl.xz",
            lambda path: read_agent_trace(path, sessions=80, span_s=2_400.0, window=200_000),
        ),
    }
    found = {}
    for name, (file, read) in files.items():
        path = folder / file
        if path.exists():
            found[name] = read(path)
            continue
        print(f"{name}: {path} is not there", file=sys.stderr)
        if name == "conversation":
            print(f"{name}: its first 1,000 requests take its place ({BUNDLED})", file=sys.stderr)
            found["conversation, its first 1,000 requests"] = read_trace(BUNDLED)
    return found


def shown(figures: SimulatedFigures) -> dict[str, Any]:
    """What is kept of a policy's figures."""
    kept = msgspec.to_builtins(figures)
    events = kept["events"]
    return {
        **{name: round(kept[name], 4) for name in KEPT},
        "recomputed_tokens": kept["recomputed_tokens"],
        "events_lost": events["lost"],
        "differences": figures.differences,
    }


def compared(name: str, trace: Trace, load: float) -> dict[str, Any]:
    """All policies on one trace at one load."""
    print(f"{name}, load {load:.0%}", file=sys.stderr)
    report = simulate_trace(trace, SimulationSettings(trace=trace.path, policies=POLICIES, load=load), Notes())
    return {
        "what": "policies",
        "trace": name,
        "requests": report.requests,
        "load": load,
        "arrival_speedup": round(report.arrival_speedup, 2),
        "cache_tokens": report.cache_tokens,
        "endless_share": round(report.endless_cached_share, 4),
        "policies": {figures.policy: shown(figures) for figures in report.policies},
    }


def delayed(name: str, trace: Trace, travels: Sequence[Travel]) -> list[dict[str, Any]]:
    """`kv` with events that come later, or not at all."""
    rows = []
    for travel in travels:
        print(f"{name}, events after {travel.delay_s:g} s, {travel.loss:.1%} lost", file=sys.stderr)
        settings = SimulationSettings(trace=trace.path, policies=("kv",), load=LOAD, travel=travel)
        (figures,) = simulate_trace(trace, settings, Notes()).policies
        rows.append(
            {
                "what": "delivery",
                "trace": name,
                "load": LOAD,
                "delay_s": travel.delay_s,
                "loss": travel.loss,
                **shown(figures),
            }
        )
    return rows


def families() -> list[dict[str, Any]]:
    """Families of prompts: every load under every policy."""
    return [
        {"what": "families", **msgspec.to_builtins(f)} for f in family_report(FamilySettings(policies=POLICIES)).figures
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces", metavar="DIR")
    found = traces(parser.parse_args().traces)
    conversation, *others = found
    rows = [compared(conversation, found[conversation], load) for load in LOADS]
    rows += [compared(name, found[name], LOAD) for name in others]
    rows += delayed(conversation, found[conversation], TRAVELS)
    save("routing", __doc__ or "", rows + families())


if __name__ == "__main__":
    main()
