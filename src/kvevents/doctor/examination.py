"""The whole road."""

import time

from kvevents.doctor.announcement import check_adapter, check_cached, check_hashes, probe
from kvevents.doctor.engine import EngineClient
from kvevents.doctor.expectations import Expectations
from kvevents.doctor.listener import Listener
from kvevents.doctor.report import Diagnosis, Hop, Verdict
from kvevents.doctor.road import ask_replay, connect, find_events, reach
from kvevents.doctor.router import RouterClient
from kvevents.doctor.routing import check_router
from kvevents.doctor.tokens import check_tokenizer
from kvevents.doctor.visit import Visit


def examine(url: str, beliefs: Expectations | None = None) -> Diagnosis:
    """Walk the road of an engine's events hop by hop, with a few short requests of its own.

    Args:
        url: the engine's base URL.
        beliefs: what is believed of it.

    Returns:
        What was found. Where the road ends, later hops are skipped.

    Raises:
        ConfigError: the URL is none.
    """
    beliefs = beliefs or Expectations()
    begin = time.monotonic()
    router = None if beliefs.router is None else RouterClient(beliefs.router, beliefs.router_token)
    visit = Visit(url, beliefs, EngineClient(url, beliefs.api_key), router)
    visit.worker  # noqa: B018 - a URL that is none is refused before anything is asked
    _walk(visit)
    seen = {finding.hop for finding in visit.findings}
    for hop in Hop:
        if hop not in seen:
            visit.note(hop, Verdict.SKIPPED, "the road ended before")
    visit.findings.sort(key=lambda finding: list(Hop).index(finding.hop))
    return Diagnosis(url, visit.findings, time.monotonic() - begin)


def _walk(visit: Visit) -> None:
    if not (reach(visit) and find_events(visit)):
        return
    with Listener(visit.sources) as listener:
        if not connect(visit, listener):
            return
        ask_replay(visit)
        if not probe(visit, listener):
            return
        check_hashes(visit)
        check_cached(visit)
        check_adapter(visit, listener)
        check_tokenizer(visit, listener)
        check_router(visit)
