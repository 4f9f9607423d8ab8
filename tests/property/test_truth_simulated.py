"""The truth check behind whole fleets in virtual time: real caches, events and evictions, a trace's own prompts."""

from functools import partial
from typing import Any

import pytest

from kvevents.routing import Decision
from kvevents.server.truth import Truth
from kvevents.server.usage import Usage
from kvevents.simulation.agenda import Agenda
from kvevents.simulation.delivery import Travel
from kvevents.simulation.replay import Outcome
from kvevents.simulation.traces import BUNDLED, read_trace
from kvevents.simulation.virtual_fleet import SimulatedCache, VirtualFleet, VirtualFleetSettings, engine_config

REQUESTS = read_trace(BUNDLED, limit=300).requests


class Fleet:
    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def distrust(self, worker_id: str, reason: str) -> None:
        self.reasons[worker_id] = reason

    def trust(self, worker_id: str) -> None:
        del self.reasons[worker_id]


def judged(cache: SimulatedCache, policy: str) -> tuple[Truth, Fleet]:
    """Requests four times as close as recorded, caches with room for a few prompts."""
    engine = engine_config(cache=cache, page_size=64, cache_tokens=200_000, prefill_tokens_per_s=20_000)
    agenda = Agenda()
    settings = VirtualFleetSettings(engines=4, engine=engine, travel=Travel(delay_s=0.05))
    fleet = VirtualFleet(settings, policy, agenda)
    told = Fleet()
    truth = Truth(told, fleet.router)
    complete = fleet.router.complete
    ending: list[Decision] = []

    def completed(decision: Decision) -> None:
        complete(decision)
        ending.append(decision)

    fleet.router.complete = completed  # type: ignore[method-assign]

    def ended(outcome: Outcome) -> None:
        truth.ended(ending.pop(), "ok", Usage(outcome.prompt_tokens, outcome.cached_tokens))

    def send(request: Any) -> None:
        fleet.send(request.tokens(), request.output_length, line=request.line, on_end=ended)

    for request in REQUESTS:
        agenda.at(request.arrival_s / 4, partial(send, request))
    agenda.run()
    fleet.close()
    return truth, told


@pytest.mark.parametrize("cache", ["radix", "block_pool"])
@pytest.mark.parametrize("policy", ["kv", "round_robin"])
def test_a_healthy_fleet_that_evicts_all_the_time_is_never_doubted(cache: SimulatedCache, policy: str) -> None:
    truth, told = judged(cache, policy)
    assert not told.reasons
    assert len(truth.workers) == 4
    assert sum(one.judged for one in truth.workers.values()) > len(REQUESTS) / 2
    assert all(one.stale_evidence < 3 and one.missing_evidence < 3 for one in truth.workers.values())
