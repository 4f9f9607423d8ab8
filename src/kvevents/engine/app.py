"""The engine's HTTP interface."""

from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kvevents.engine.answers import Answer, ChatAnswer, CompletionAnswer, GenerateAnswer
from kvevents.engine.engine import Engine
from kvevents.engine.exchange import Exchange
from kvevents.engine.metrics import engine_registry
from kvevents.engine.protocol import (
    ChatRequest,
    CloseSessionRequest,
    CompletionRequest,
    GenerateRequest,
    RequestError,
    decode_request,
)
from kvevents.engine.scheduler import QueueFullError
from kvevents.errors import CapacityError, ConfigError

RANK_HEADER = "x-data-parallel-rank"
_STATUSES: dict[type[Exception], int] = {CapacityError: 400, ConfigError: 400, QueueFullError: 503}
CLIENT_GONE = 499
"""Status of an answer that nobody reads any more, as nginx counts it."""


def create_app(engine: Engine) -> Starlette:
    """The routes of a running engine."""
    api = _Api(engine)
    errors: tuple[type[Exception], ...] = (RequestError, *_STATUSES, HTTPException, ClientDisconnect, Exception)
    return Starlette(
        routes=[
            Route("/v1/completions", api.completions, methods=["POST"]),
            Route("/v1/chat/completions", api.chat, methods=["POST"]),
            Route("/v1/models", api.models),
            Route("/generate", api.generate, methods=["POST"]),
            Route("/server_info", api.server_info),
            Route("/get_server_info", api.server_info),
            Route("/flush_cache", api.flush_cache, methods=["GET", "POST"]),
            Route("/close_session", api.close_session, methods=["POST"]),
            Route("/pause_generation", api.pause, methods=["POST"]),
            Route("/continue_generation", api.resume, methods=["POST"]),
            Route("/holdings", api.holdings),
            Route("/health", api.health),
            Route("/metrics", api.metrics),
        ],
        exception_handlers=dict.fromkeys(errors, _answer_error),
    )


class EventStream(Response):
    """Server-sent events: a chunk whenever the request has news."""

    def __init__(self, exchange: Exchange, answer: Answer) -> None:
        self.background = None
        self.status_code = 200
        self.init_headers(
            {
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                RANK_HEADER: str(exchange.request.dp_rank),
            }
        )
        self._exchange = exchange
        self._answer = answer

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        async with self._exchange as exchange:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                while not exchange.request.is_done:
                    if not await exchange.news():
                        return
                    chunk = self._answer.chunk(exchange.request)
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                end = self._answer.end(exchange.request)
            except RequestError as error:
                end = b"data: " + msgspec.json.encode(_error_body(scope["path"], error.status, error)) + b"\n\n"
            await send({"type": "http.response.body", "body": end})


class _Api:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._registry = engine_registry(engine.ranks)

    async def completions(self, http: Request) -> Response:
        form = decode_request(await self._body(http), CompletionRequest)
        answer = CompletionAnswer(self._model(form.model), self._engine.tokenizer, wants_usage=form.wants_usage)
        return await self._run(http, form, answer)

    async def chat(self, http: Request) -> Response:
        form = decode_request(await self._body(http), ChatRequest)
        answer = ChatAnswer(self._model(form.model), self._engine.tokenizer, wants_usage=form.wants_usage)
        return await self._run(http, form, answer)

    async def generate(self, http: Request) -> Response:
        form = decode_request(await self._body(http), GenerateRequest)
        return await self._run(http, form, GenerateAnswer(self._engine.tokenizer))

    async def models(self, _http: Request) -> Response:
        config = self._engine.config
        model = {"id": config.model_name, "object": "model", "created": 0, "owned_by": "kvevents"}
        adapters = [model | {"id": name, "parent": config.model_name} for name in config.adapters]
        return _json({"object": "list", "data": [model, *adapters]})

    async def server_info(self, _http: Request) -> Response:
        return _json(self._engine.describe())

    async def flush_cache(self, _http: Request) -> Response:
        if not self._engine.flush():
            raise RequestError("the cache is in use: requests are waiting or running; flush once they are done")
        return _json({"success": True, "message": "Cache flushed."})

    async def close_session(self, http: Request) -> Response:
        form = decode_request(await self._body(http), CloseSessionRequest)
        return _json({"closed": self._engine.close_session(form.session_id)})

    async def pause(self, _http: Request) -> Response:
        self._engine.pause()
        return _json({"status": "paused"})

    async def resume(self, _http: Request) -> Response:
        self._engine.resume()
        return _json({"status": "running"})

    async def holdings(self, _http: Request) -> Response:
        return _json({"ranks": self._engine.holdings()})

    async def health(self, _http: Request) -> Response:
        self._check_health()
        return _json({"status": "ok"})

    async def metrics(self, _http: Request) -> Response:
        return Response(generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST})

    def _check_health(self) -> None:
        if (failure := self._engine.failure) is not None:
            raise RequestError(f"a rank has failed: {failure!r}", status=503)

    def _model(self, asked: str | None) -> str:
        return asked or self._engine.config.model_name

    def _extra_key(self, form: Any) -> str | None:
        """What separates a request's cache from others': its own key, or its adapter under the name in events."""
        adapters = self._engine.config.adapters
        asked = form.lora_path or getattr(form, "model", None)
        if asked is not None and asked in adapters:
            return adapters[asked]
        if form.lora_path is not None:
            raise RequestError(
                f"lora_path: expected one of {sorted(adapters)}, got {form.lora_path!r}", param="lora_path"
            )
        key: str | None = form.extra_key
        return key

    async def _body(self, http: Request) -> bytes:
        limit = self._engine.config.max_body_bytes
        parts: list[bytes] = []
        size = 0
        async for part in http.stream():
            size += len(part)
            if size > limit:
                raise RequestError(f"request body: expected at most {limit} bytes, got more", status=413)
            parts.append(part)
        return b"".join(parts)

    async def _run(self, http: Request, form: Any, answer: Answer) -> Response:
        self._check_health()
        form.check()
        prompt = form.read(self._engine.tokenizer)
        exchange = Exchange(
            self._engine,
            http.receive,
            prompt.tokens,
            max_tokens=prompt.max_tokens,
            request_id=form.rid,
            stream=bool(form.stream),
            dp_rank=_asked_rank(http, form.data_parallel_rank),
            extra_key=self._extra_key(form),
            cache_salt=form.cache_salt or None,
            session_id=form.session_id,
            priority=form.priority or 0,
        )
        if form.stream:
            return EventStream(exchange, answer)
        async with exchange:
            while not exchange.request.is_done:
                if not await exchange.news():
                    return Response(status_code=CLIENT_GONE)
        return _json(answer.whole(exchange.request), headers={RANK_HEADER: str(exchange.request.dp_rank)})


def _asked_rank(http: Request, in_body: int | None) -> int | None:
    asked = http.headers.get(RANK_HEADER)
    if asked is None or in_body is not None:
        return in_body
    if not (asked.isascii() and asked.isdigit()):
        raise RequestError(f"{RANK_HEADER}: expected a rank, got {asked!r}", param=RANK_HEADER)
    return int(asked)


def _json(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Response(body, status, headers, media_type="application/json")


async def _answer_error(http: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_GONE)
    if isinstance(error, RequestError):
        status = error.status
    elif isinstance(error, HTTPException):
        status = error.status_code
    else:
        status = _STATUSES.get(type(error), 500)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else None
    return _json(_error_body(http.url.path, status, error), status=status, headers=headers)


def _error_body(path: str, status: int, error: Exception) -> dict[str, object]:
    """OpenAI's shape below /v1, a plain one elsewhere."""
    message = str(error) if not isinstance(error, HTTPException) else error.detail
    if status >= 500 and not isinstance(error, RequestError):
        message = f"the engine failed on this request: {error!r}"
    if not path.startswith("/v1/"):
        return {"error": {"code": status, "message": message}}
    kind = "invalid_request_error" if status < 500 else "server_error"
    param = error.param if isinstance(error, RequestError) else None
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}
