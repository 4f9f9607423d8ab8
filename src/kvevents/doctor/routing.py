"""Whether the router believes what the engine announced, and would go by it."""

import time
from collections.abc import Sequence
from typing import Any

from kvevents.doctor.report import Hop, Verdict
from kvevents.doctor.router import RouterAnswer, RouterClient, RouterSource, RouterWorker
from kvevents.doctor.tokens import written_requests
from kvevents.doctor.visit import Visit
from kvevents.errors import TransportError
from kvevents.transport import State

_LOOK_S = 0.05


def check_router(visit: Visit) -> bool:
    """The router knows the engine, follows its events, and would send the probe there."""
    router = visit.router
    if router is None:
        return visit.note(Hop.ROUTER, Verdict.SKIPPED, "nobody named a router (--router)")
    try:
        worker = _known(visit, router.workers())
        return worker is not None and _follows(visit, worker) and _believes(visit, router, worker)
    except TransportError as error:
        return visit.cause(Hop.ROUTER, str(error), "correct --router, or set KVEVENTS_ADMIN_TOKEN")


def _known(visit: Visit, workers: Sequence[RouterWorker]) -> RouterWorker | None:
    worker = next((one for one in workers if one.url.rstrip("/") == visit.engine.url or one.id == visit.worker), None)
    if worker is None:
        known = ", ".join(one.url for one in workers) or "no worker"
        visit.cause(Hop.ROUTER, f"the router knows {known}, and not this engine", "add it: --worker, or POST /workers")
    elif not worker.up:
        visit.cause(Hop.ROUTER, f"the router takes the engine for down: {worker.reason}", "see the router's log")
        return None
    return worker


def _follows(visit: Visit, worker: RouterWorker) -> bool:
    if not worker.sources:
        fix = "see what the router says; --block-size sets that of its index"
        return visit.cause(Hop.ROUTER, f"the router uses no events of the engine: {worker.events}", fix)
    for source in worker.sources:
        if source.state != State.LIVE:
            fix = "docs/delivery.md explains each reason"
            found = f"the router's picture of the engine is {source.state}: {source.reason}"
            if not _is_told(visit, source):
                found, fix = _another_port(visit, source)
            elif source.code == "topic-mismatch":
                fix = "correct the topic in the router's configuration, or leave it out: every topic is heard then"
            return visit.cause(Hop.ROUTER, found, fix)
    if len(worker.sources) < len(visit.sources):
        found = f"the router follows {len(worker.sources)} of the engine's {len(visit.sources)} ranks"
        return visit.cause(Hop.ROUTER, found, f"ranks = {len(visit.sources)} in the router's configuration")
    return True


def _is_told(visit: Visit, source: RouterSource) -> bool:
    """Whether the router listens where the engine publishes. Hosts may be spelled in many ways; ports may not."""
    told = [one.endpoint for one in visit.sources]
    return source.endpoint.rpartition(":")[2] in {one.rpartition(":")[2] for one in told}


def _another_port(visit: Visit, source: RouterSource) -> tuple[str, str]:
    told = sorted(one.endpoint for one in visit.sources)
    return (
        f"the router listens at {source.endpoint}, and the engine publishes at {', '.join(told)}",
        f"correct the port in the router's configuration: {told[0]}; a relay there has to follow this engine",
    )


def _believes(visit: Visit, router: RouterClient, worker: RouterWorker) -> bool:
    ids = list(visit.probe)
    answer = _wait_for_match(visit, router, worker, {"token_ids": ids})
    whole, usable = _whole(answer), answer.usable(worker.id)
    if usable < whole:
        found = f"the router believes {usable} of {whole} blocks of the prompt are there"
        fix = "compare both: kvevents diff ROUTER ENGINE; a block size that does not fit is in the router's log"
        stray = next((source for source in worker.sources if not _is_told(visit, source)), None)
        if stray is not None and not usable:
            found, fix = _another_port(visit, stray)
        return visit.cause(Hop.ROUTER, found, fix)
    if not (_names_adapter(visit, router, worker) and _reads_text(visit, router, worker)):
        return False
    chosen = router.route({"token_ids": ids})
    if chosen != worker.id:
        found = f"it would send the prompt to {chosen}: that costs less now"
        fix = "POST /route?explain=1 with the prompt says why"
        return visit.note(Hop.ROUTER, Verdict.NOTE, found, fix)
    if _is_noted(visit):
        return True
    return visit.fine(Hop.ROUTER, f"it believes {usable} blocks of the prompt are there, and would send it there")


def _names_adapter(visit: Visit, router: RouterClient, worker: RouterWorker) -> bool:
    """The router has the name for the adapter that events have."""
    name = visit.beliefs.adapter
    if name is None or not visit.adapter_probe:
        return True
    request = {"model": name, "token_ids": list(visit.adapter_probe)}
    answer = _wait_for_match(visit, router, worker, request)
    if answer.usable(worker.id) < _whole(answer):
        found = f"a prompt for the adapter {name!r} is there, and the router looks for it under another name"
        fix = f"give the router the adapter's name and model: [prompts.adapters], {name!r} = {visit.model!r}"
        return visit.cause(Hop.ROUTER, found, fix)
    return True


def _reads_text(visit: Visit, router: RouterClient, worker: RouterWorker) -> bool:
    """The router makes of text and chat what the engine makes of them."""
    fix = "give the router the tokenizer and chat template that the engine has: [[prompts.tokenizer]]"
    for kind, path, request in written_requests(visit):
        try:
            usage = visit.engine.send(path, request)
        except TransportError:
            continue  # a model without a template takes no chats: from nobody
        answer = _wait_for_match(visit, router, worker, request)
        prompt, whole, usable = answer.prompt, _whole(answer), answer.usable(worker.id)
        if prompt.approximate:
            found = f"{kind} is routed by what was sent where, and not by events: {prompt.why_approximate}"
            visit.note(Hop.ROUTER, Verdict.NOTE, found, fix)
            return True
        if prompt.tokens != usage.prompt_tokens:
            found = f"the router makes {prompt.tokens} tokens of a {kind} that has {usage.prompt_tokens} in the engine"
            return visit.cause(Hop.ROUTER, found, fix)
        if usable < whole:
            found = f"the router makes as many tokens of a {kind} as the engine, and finds {usable} of {whole} blocks"
            return visit.cause(Hop.ROUTER, found, fix)
    return True


def _whole(answer: RouterAnswer) -> int:
    """Blocks of a prompt that can be found cached: the last token is always computed."""
    return (answer.prompt.tokens - 1) // answer.block_size


def _is_noted(visit: Visit) -> bool:
    return any(finding.hop is Hop.ROUTER for finding in visit.findings)


def _wait_for_match(visit: Visit, router: RouterClient, worker: RouterWorker, request: dict[str, Any]) -> RouterAnswer:
    """The router's answer once it has heard what the engine announced, or after some patience."""
    end = time.monotonic() + visit.beliefs.patience_s
    while True:
        answer = router.query(request)
        is_heard = answer.usable(worker.id) >= _whole(answer)
        if is_heard or answer.prompt.approximate or time.monotonic() > end:
            return answer
        time.sleep(_LOOK_S)
