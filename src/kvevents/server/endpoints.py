"""Every path of the router, in one table: what answers, who may, what it takes and gives."""

from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from kvevents.routing import POLICIES
from kvevents.server.access.access import LOGIN, LOGOUT
from kvevents.server.access.middleware import Login
from kvevents.server.configuration import WorkerSettings
from kvevents.server.control import Control, SetPolicy
from kvevents.server.errors import HttpError
from kvevents.server.fleet.http import ROUTER_HEADER
from kvevents.server.openapi import OBJECT, Answer, Operation, Query, Schema, document
from kvevents.server.prefixes import BOUNDS as PREFIX_BOUNDS
from kvevents.server.service import Service
from kvevents.server.watch import Watch

_TOKENS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}}
_TEXT: Schema = {"type": "string"}
_MESSAGE: Schema = {
    "type": "object",
    "properties": {"role": {"enum": ["system", "user", "assistant"]}, "content": _TEXT},
    "required": ["role", "content"],
}
_MESSAGES: Schema = {"type": "array", "items": _MESSAGE, "minItems": 1}
_NAMESPACE: Schema = {"model": _TEXT, "lora_name": _TEXT, "cache_salt": _TEXT}
_GENERATION: Schema = {**_NAMESPACE, "max_tokens": {"type": "integer", "minimum": 1}, "stream": {"type": "boolean"}}

PROMPT: Schema = {
    "type": "object",
    "properties": {"token_ids": _TOKENS, "text": _TEXT, "prompt": {"anyOf": [_TEXT, _TOKENS]}, "messages": _MESSAGES}
    | _NAMESPACE,
    "oneOf": [{"required": [name]} for name in ("token_ids", "text", "prompt", "messages")],
}
"""A prompt in one of its forms."""

COMPLETION: Schema = {
    "type": "object",
    "properties": {"prompt": {"anyOf": [_TEXT, _TOKENS]}, **_GENERATION},
    "required": ["model", "prompt"],
}
CHAT: Schema = {
    "type": "object",
    "properties": {"messages": _MESSAGES, **_GENERATION},
    "required": ["model", "messages"],
}
_BODIES = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}

_OF_WORKERS = (400, 404, 408, 429, 431, 502, 503, 504)
"""What a request that is passed on may end with, besides what the worker says."""

_WORKER: Schema = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("id", "url", "reason", "state", "events")}
    | {"up": {"type": "boolean"}, "ranks": {"type": "array"}, "sources": {"type": "array"}},
    "required": ["id", "url", "up", "reason", "state", "events", "ranks", "sources"],
}
_HTML, _TEXT_PLAIN = "text/html", "text/plain"


def endpoints(service: Service, control: Control, watch: Watch) -> list[Operation]:
    """All that the application answers, and (without a handler) all that the data plane does."""
    table = [*_passed_on(service), *_own(control), *_of_the_page(service, watch)]
    table.append(Operation("GET", "/openapi.json", document(table), answers={200: Answer("This.", OBJECT)}))
    return table


def _passed_on(service: Service) -> list[Operation]:
    """What workers answer: the proxy's, without a handler, and the models of all of them."""

    async def models(request: Request) -> Response:
        """`GET /v1/models`: what the workers serve, each model once."""
        served = await service.fleet.models(request.headers.get(ROUTER_HEADER))
        return Response(msgspec.json.encode({"object": "list", "data": served}), media_type="application/json")

    async def model(request: Request) -> Response:
        """`GET /v1/models/{model}`: one of them."""
        name = request.path_params["model"]
        for one in await service.fleet.models(request.headers.get(ROUTER_HEADER)):
            if one["id"] == name:
                return Response(msgspec.json.encode(one), media_type="application/json")
        raise HttpError(404, "model_not_found", f"model {name!r} is served by no worker that is up")

    answers = {200: Answer("What the worker answers; a stream of server-sent events where one was asked for.")}
    return [
        *(
            Operation(
                "POST",
                path,
                None,
                "client",
                answers,
                _OF_WORKERS,
                body=_BODIES.get(path, OBJECT),
                description="Passed on, byte for byte, to the worker that is expected to answer it soonest.",
            )
            for path in service.settings.proxy.paths
        ),
        Operation("GET", "/v1/models", models, "client", {200: Answer("The models.", OBJECT)}, (503,)),
        Operation("GET", "/v1/models/{model:path}", model, "client", {200: Answer("It.", OBJECT)}, (404, 503)),
    ]


def _own(control: Control) -> list[Operation]:
    """What whoever runs the router asks."""
    policy: Schema = {"type": "object", "properties": {"policy": {"enum": list(POLICIES)}}, "required": ["policy"]}
    worker = Answer("The worker.", _WORKER)
    drain = Query(
        "drain",
        {"type": "number", "minimum": 0, "maximum": 1e6},
        "Wait for its open requests to end, so many seconds at most; without a value, as long as it takes.",
    )
    return [
        Operation(
            "POST",
            "/route",
            None,
            answers={200: Answer("The decision.", OBJECT)},
            errors=(503,),
            body=PROMPT,
            query=[Query("explain", {"enum": ["0", "1"]}, "With every candidate, its loads, its cost and the terms.")],
            description="Where this prompt would go now. Only asks: it changes no later decision.",
        ),
        Operation(
            "POST",
            "/query",
            None,
            answers={200: Answer("The matches.", OBJECT)},
            body=PROMPT,
            description="How much of this prompt each worker holds.",
        ),
        Operation("GET", "/workers", control.workers, answers={200: Answer("The workers.", _workers())}),
        Operation(
            "POST",
            "/workers",
            control.add_worker,
            answers={201: worker},
            errors=(409,),
            body=WorkerSettings,
        ),
        Operation(
            "DELETE",
            "/workers/{worker_id:path}",
            control.remove_worker,
            answers={204: Answer("It is gone.", None), 202: Answer("It goes once it is idle.", _WORKER)},
            errors=(400, 404),
            query=[drain],
        ),
        Operation(
            "GET",
            "/holdings/{worker_id:path}",
            control.holdings,
            answers={200: Answer("Blocks by rank and tier.", OBJECT)},
            errors=(404,),
        ),
        Operation(
            "GET",
            "/snapshot",
            control.snapshot,
            answers={200: Answer("The index, as `PrefixIndex.restore` takes it.", _TEXT, "application/octet-stream")},
        ),
        Operation("POST", "/policy", control.set_policy, answers={200: Answer("The policy.", policy)}, body=SetPolicy),
        Operation(
            "GET",
            "/metrics",
            control.metrics,
            answers={200: Answer("Prometheus' text format.", _TEXT, _TEXT_PLAIN)},
        ),
        Operation("GET", "/health", control.health, "open", {200: Answer("It runs.", OBJECT)}),
        Operation(
            "GET", "/ready", control.ready, "open", {200: Answer("It is.", OBJECT), 503: Answer("Not yet.", OBJECT)}
        ),
    ]


def _of_the_page(service: Service, watch: Watch) -> list[Operation]:
    """The page, what it is fed with, and its login."""
    login = Login(service.access)
    token: Schema = {"type": "object", "properties": {"token": _TEXT}, "required": ["token"]}
    session = {204: Answer("The session is in a cookie.", None), 303: Answer("To the page.", None)}
    told: dict[str, dict[str, Any]] = {
        "/stats": {
            "answers": {200: Answer("The figures.", OBJECT)},
            "query": [Query("history", {"enum": ["0", "1"]}, "With how the figures went, and what happened.")],
        },
        "/prefixes": {
            "answers": {200: Answer("The tree of prompts from there down.", OBJECT)},
            "errors": (400, 404),
            "query": [
                Query("at", _TEXT, "The id of a stretch in an answer before; without it, from above all."),
                *(
                    Query(name, {"type": "integer", "minimum": least, "maximum": most}, f"{text}; usually {usual}.")
                    for (name, (least, most, usual)), text in zip(
                        PREFIX_BOUNDS.items(), ("Levels to tell", "Stretches to tell at most"), strict=True
                    )
                ),
            ],
        },
        "/stream": {"answers": {200: Answer("Server-sent events.", _TEXT, "text/event-stream")}, "errors": (503,)},
        "/": {"answers": {200: Answer("The page.", _TEXT, _HTML), 401: Answer("Its login.", _TEXT, _HTML)}},
        "/dashboard/{name:path}": {
            "scope": "page",
            "answers": {200: Answer("A file.", _TEXT, "*/*"), 304: Answer("It has not changed.", None)},
            "errors": (404,),
        },
    }
    return [
        *(
            Operation(method, route.path, route.endpoint, **told.get(route.path, {}))
            for route in watch.routes
            for method in sorted((route.methods or {"GET"}) - {"HEAD"})
        ),
        Operation("POST", LOGIN, login.login, "page", session, (401, 429), body=token),
        Operation("POST", LOGOUT, login.logout, "page", session),
    ]


def _workers() -> Schema:
    return {
        "type": "object",
        "properties": {"workers": {"type": "array", "items": _WORKER}},
        "required": ["workers"],
    }


ANY_METHOD = ("GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT")


async def not_here(_request: Request) -> Response:
    """Any method but POST of a path that the data plane answers."""
    raise HTTPException(405, "POST only", {"allow": "POST"})  # and POST does not come here: see `Proxy`
