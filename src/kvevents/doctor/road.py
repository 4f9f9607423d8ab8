"""From the engine to its sockets: the hops before anything is announced."""

import dataclasses

from kvevents.doctor.listener import Listener
from kvevents.doctor.replay import answers_replay
from kvevents.doctor.report import Hop, Verdict
from kvevents.doctor.visit import Visit
from kvevents.errors import ConfigError, TransportError, WireError
from kvevents.transport import Source, State, discover, rank_sources


def reach(visit: Visit) -> bool:
    """The engine answers, and serves a model."""
    try:
        models = visit.engine.models()
    except TransportError as error:
        return visit.cause(Hop.REACHABLE, str(error), "start the engine, or correct its URL, its key, or the firewall")
    wanted = visit.beliefs.model
    if wanted is not None and wanted not in models:
        fix = f"ask for one of {', '.join(models)}"
        return visit.cause(Hop.REACHABLE, f"it does not serve the model {wanted!r}", fix)
    visit.model = wanted or next(iter(models), None)
    return visit.fine(Hop.REACHABLE, f"serves {', '.join(models) or 'no model that it names'}")


def find_events(visit: Visit) -> bool:
    """The engine publishes events, and where it does is where they are looked for."""
    beliefs = visit.beliefs
    try:
        told = discover(visit.url, api_key=beliefs.api_key, keys=beliefs.keys)
    except ConfigError as error:
        return visit.cause(Hop.EVENTS, "the engine publishes no KV cache events", str(error))
    except TransportError as error:
        if beliefs.events is None:
            fix = "vLLM does not say where its sockets are: name them with --events tcp://... and --replay tcp://..."
            return visit.cause(Hop.EVENTS, f"it does not say where its events are: {error}", fix)
        told = []
    visit.told_block_size = told[0].block_size if told else beliefs.block_size
    believed = _believed(visit)
    visit.sources = told or believed
    if believed and told and {one.endpoint for one in believed}.isdisjoint(one.endpoint for one in told):
        found = f"events are looked for at {believed[0].endpoint}, and the engine publishes at {told[0].endpoint}"
        return visit.cause(Hop.EVENTS, found, f"correct the port: {told[0].endpoint}")
    ranks = beliefs.dp_size or len(visit.sources)
    if ranks != len(visit.sources):
        found = f"{ranks} ranks are expected, and the engine publishes {len(visit.sources)}"
        return visit.cause(Hop.EVENTS, found, f"follow {len(visit.sources)} ranks, each on the port after the last")
    where = ", ".join(one.endpoint for one in visit.sources[:4])
    return visit.fine(Hop.EVENTS, f"{len(visit.sources)} ranks publish at {where}")


def connect(visit: Visit, listener: Listener) -> bool:
    """A publisher answers at every socket."""

    def all_answer() -> bool | None:
        return None if any(state.state is State.CONNECTING for state in listener.states()) else True

    if listener.wait(all_answer, visit.beliefs.patience_s) is None:
        silent = [state.reason for state in listener.states() if state.state is State.CONNECTING]
        fix = (
            "see that the engine runs with these sockets and they can be reached from here (port, firewall, "
            "endpoint_host); a publisher that connects wants --bind"
        )
        return visit.cause(Hop.SOCKETS, f"nothing publishes there: {silent[0]}", fix)
    return visit.fine(Hop.SOCKETS, "a publisher answers at every socket")


def ask_replay(visit: Visit) -> bool:
    """The replay socket answers, so that what is lost can be had again."""
    source = visit.sources[0]
    if visit.beliefs.replay is not None:
        source = dataclasses.replace(source, replay_endpoint=visit.beliefs.replay)
    if source.replay_endpoint is None:
        fix = "give the engine a replay_endpoint, or put `kvevents relay` beside it"
        found = "there is no replay socket: after a lost message or a restart nobody knows what the engine holds"
        return visit.note(Hop.REPLAY, Verdict.NOTE, found, fix)
    try:
        answers = answers_replay(source, seconds=visit.beliefs.patience_s)
    except (TransportError, WireError) as error:
        return visit.cause(Hop.REPLAY, f"{source.replay_endpoint}: {error}", "correct the replay endpoint")
    if not answers:
        fix = "correct the replay endpoint, or open its port; until then a late router never has the whole picture"
        return visit.cause(Hop.REPLAY, f"{source.replay_endpoint} does not answer", fix)
    return visit.fine(Hop.REPLAY, f"{source.replay_endpoint} answers")


def _believed(visit: Visit) -> list[Source]:
    beliefs = visit.beliefs
    if beliefs.events is None:
        return []
    return rank_sources(
        visit.worker,
        beliefs.events,
        beliefs.dp_size or 1,
        replay_endpoint=beliefs.replay,
        topic=beliefs.topic or "",
        block_size=beliefs.block_size,
        keys=beliefs.keys,
    )
