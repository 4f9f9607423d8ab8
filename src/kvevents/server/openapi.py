"""The HTTP surface as a table, and its OpenAPI description."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvevents._core import __version__
from kvevents.server.configuration import Secret
from kvevents.server.configuration.reference import attributes_of

Scope: TypeAlias = Literal["open", "page", "client", "admin"]
"""Who may: anyone; anyone, from the router's own page; the client's token; the admin's token or a session."""

Schema: TypeAlias = dict[str, Any]

ANY: Schema = {}
OBJECT: Schema = {"type": "object"}

_JSON = "application/json"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_ACCESS: Mapping[Scope, Sequence[int]] = {
    "open": (),
    "page": (403,),
    "client": (401, 403, 429),
    "admin": (401, 403, 429),
}
_REASONS: Mapping[int, str] = {
    400: "The request cannot be understood.",
    401: "A token is missing or wrong.",
    403: "Not from there, or not to there.",
    404: "There is no such thing.",
    405: "Not this method.",
    408: "The request did not come in time.",
    409: "It contradicts what is there.",
    413: "The body is too large.",
    429: "Too many requests, or wrong tokens.",
    431: "The head is too large.",
    502: "The worker failed.",
    503: "No worker can take it, or none yet.",
    504: "The worker took too long.",
}
_SECURITY: Mapping[Scope, list[dict[str, list[str]]]] = {
    "open": [],
    "page": [],
    "client": [{"client": []}],
    "admin": [{"admin": []}, {"session": []}],
}


class Answer(NamedTuple):
    """What a status brings.

    Attributes:
        description: in a sentence.
        schema: of the body; None where there is none.
        media_type: of the body.
    """

    description: str
    schema: Schema | None = ANY
    media_type: str = _JSON


class Query(NamedTuple):
    """A parameter after the question mark.

    Attributes:
        name: its name.
        schema: of its value.
        description: what it does.
    """

    name: str
    schema: Schema
    description: str


class Operation(NamedTuple):
    """One method of one path. The application's routes are made of these, so that none is left out.

    Attributes:
        method: in capitals.
        path: as Starlette has it.
        handler: what answers; its docstring is the description. None where the proxy does.
        scope: who may.
        answers: what it answers when all is well, by status.
        errors: statuses that it answers with otherwise, besides those of its scope.
        body: what it takes: a type, or a schema; None for nothing.
        query: parameters.
        description: where there is no handler that has one.
    """

    method: str
    path: str
    handler: Callable[..., Any] | None
    scope: Scope = "admin"
    answers: Mapping[int, Answer] = {200: Answer("Done.")}
    errors: Sequence[int] = ()
    body: Any = None
    query: Sequence[Query] = ()
    description: str = ""

    @property
    def route(self) -> Route:
        """The route that serves it."""
        assert self.handler is not None, "what the proxy answers is no route"
        return Route(self.path, self.handler, methods=[self.method])


def describe(operations: Iterable[Operation]) -> dict[str, Any]:
    """The OpenAPI document of operations."""
    table = list(operations)
    types = [operation.body for operation in table if isinstance(operation.body, type)]
    schemas, components = msgspec.json.schema_components(
        types, schema_hook=_schema_of, ref_template="#/components/schemas/{name}"
    )
    known = dict(zip(types, schemas, strict=True))
    for kind in types:
        _explain(kind, components[kind.__name__])
    paths: dict[str, dict[str, Any]] = {}
    for operation in table:
        body: Schema | None = known[operation.body] if isinstance(operation.body, type) else operation.body
        path = _PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, body)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kvevents serve",
            "version": __version__,
            "description": "An OpenAI endpoint over a fleet of engines, and what runs it.",
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _error(), "OpenAIError": _error("type", "param")},
            "securitySchemes": {
                "client": {"type": "http", "scheme": "bearer", "description": "KVEVENTS_CLIENT_TOKEN"},
                "admin": {"type": "http", "scheme": "bearer", "description": "KVEVENTS_ADMIN_TOKEN"},
                "session": {"type": "apiKey", "in": "cookie", "name": "kvevents_session"},
            },
        },
    }


def document(operations: Iterable[Operation]) -> Callable[[Request], Any]:
    """The handler that serves the document of operations, made once."""
    body = b""

    async def openapi(_request: Request) -> Response:
        """`GET /openapi.json`: this document."""
        nonlocal body
        body = body or msgspec.json.encode(describe(operations))
        return Response(body, media_type=_JSON)

    return openapi


def _explain(kind: type, schema: Schema) -> None:
    """Say of each property what the docstring says of the attribute; secrets are no properties."""
    said = attributes_of(kind)
    schema["description"] = (inspect.getdoc(kind) or "").partition("\n\n")[0]
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        if Secret in get_args(field.type):
            del schema["properties"][name]
        elif name in said:
            schema["properties"][name]["description"] = said[name]


def _operation(operation: Operation, body: Schema | None) -> dict[str, Any]:
    summary, description = _words(operation)
    is_openai = operation.path.startswith("/v1/")
    error = {"schema": {"$ref": f"#/components/schemas/{'OpenAIError' if is_openai else 'Error'}"}}
    errors = {*operation.errors, *_ACCESS[operation.scope], 405, *({400, 413} if body is not None else ())}
    responses = {
        str(status): {
            "description": answer.description,
            **({} if answer.schema is None else {"content": {answer.media_type: {"schema": answer.schema}}}),
        }
        for status, answer in operation.answers.items()
    }
    for status in sorted(errors):
        told = {"description": _REASONS[status], "content": {_JSON: error}}
        responses.setdefault(str(status), told)
    responses["default"] = {"description": "Something else went wrong.", "content": {_JSON: error}}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(operation.path)
    ]
    parameters += [
        {"name": query.name, "in": "query", "schema": query.schema, "description": query.description}
        for query in operation.query
    ]
    return {
        "operationId": re.sub(r"\W+", "_", f"{operation.method.lower()} {operation.path}").strip("_"),
        "summary": summary,
        **({"description": description} if description else {}),
        **({"parameters": parameters} if parameters else {}),
        **({"requestBody": {"required": True, "content": {_JSON: {"schema": body}}}} if body is not None else {}),
        "responses": responses,
        "security": _SECURITY[operation.scope],
        "tags": [operation.scope],
    }


def _words(operation: Operation) -> tuple[str, str]:
    """Summary and description, from the handler's docstring without its `METHOD /path`."""
    text = inspect.getdoc(operation.handler) if operation.handler is not None and not operation.description else None
    first, _, rest = (text or operation.description).partition("\n\n")
    summary = " ".join(first.split())
    if summary.startswith("`"):
        summary = summary.partition(": ")[2] or summary
    return summary[:1].upper() + summary[1:], " ".join(rest.split())


def _schema_of(kind: type) -> Schema:
    if kind is Path:
        return {"type": "string", "minLength": 1}
    if kind is Secret:
        return {"type": "null"}  # never taken over HTTP
    raise NotImplementedError(kind)


def _error(*more: str) -> Schema:
    text = {"type": ["string", "null"]}
    properties = {"code": {"type": ["string", "integer"]}, "message": {"type": "string"}, **dict.fromkeys(more, text)}
    inner = {"type": "object", "properties": properties, "required": ["code", "message"]}
    return {"type": "object", "properties": {"error": inner}, "required": ["error"]}
