"""A router in this process and engines that do what a test tells them, over real sockets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import uvicorn
from starlette.types import ASGIApp

from kvevents.errors import ConfigError
from kvevents.events import BlockStored, KVEventBatch
from kvevents.server import Settings, WorkerSettings, create_app
from kvevents.server.service import Service
from kvevents.transport import EventSink, Source, SourceState, rank_sources
from kvevents.transport.state import Reason, SourceCounters, State
from kvevents.wire import encode_batch

EVENT_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test on a loop of its own, 30 s at most."""

    async def limited() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(limited())


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again; the test's own time limit ends it."""
    while True:
        if await condition():
            return
        await asyncio.sleep(0.01)


async def get(url: str, path: str) -> Any:
    """The JSON at a path."""
    async with aiohttp.ClientSession(url) as http, http.get(path) as response:
        assert response.status == 200
        return await response.json()


async def text(url: str, path: str) -> str:
    """What is at a path."""
    async with aiohttp.ClientSession(url) as http, http.get(path) as response:
        assert response.status == 200
        return await response.text()


async def post(url: str, path: str, body: object, *, status: int = 200) -> Any:
    """The JSON that a body is answered with."""
    async with aiohttp.ClientSession(url) as http, http.post(path, json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


@dataclass
class Arrived:
    """A request as the engine got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    has_hung_up: Callable[[], bool]


def whole(value: object, *, status: str = "200 OK", headers: bytes = b"") -> bytes:
    """A reply with a JSON body."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n".encode()
    return head + headers + b"\r\n" + body


def chunk(data: bytes) -> bytes:
    """A chunk of a chunked body; empty is the last."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


Reply = Callable[[Arrived, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class StubEngine:
    """An engine whose completions are one function; closing the writer in it kills the connection.

    Its `health` is the status it answers with, None makes it hang; `asked` are the questions of routers, `arrived` all
    other requests.
    """

    reply: Reply
    model: str = "stub"
    health: str | None = "200 OK"
    server_info: dict[str, Any] | None = None
    arrived: list[Arrived] = field(default_factory=list)
    asked: list[Arrived] = field(default_factory=list)
    url: str = ""
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def id(self) -> str:
        return self.url.removeprefix("http://")

    @property
    def completions(self) -> list[Arrived]:
        return [request for request in self.arrived if request.method == "POST"]

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """As if killed: nobody listens, open connections end."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (request := await _read_request(reader)) is not None:
                if request.path == "/health" and self.health is None:
                    continue  # it hangs
                if request.method == "GET":
                    self.asked.append(request)
                    writer.write(self._answer_get(request.path))
                    await writer.drain()
                else:
                    self.arrived.append(request)
                    await self.reply(request, writer)
                if writer.is_closing():
                    break
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer_get(self, path: str) -> bytes:
        if path == "/health":
            return whole({}, status=self.health or "")
        if path == "/v1/models":
            return whole({"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": "stub"}]})
        if path == "/server_info" and self.server_info is not None:
            return whole(self.server_info)
        return whole({}, status="404 Not Found")


async def _read_request(reader: asyncio.StreamReader) -> Arrived | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Arrived(method, path, headers, body, reader.at_eof)


async def answer(_request: Arrived, writer: asyncio.StreamWriter) -> None:
    """A whole answer with usage."""
    usage = {"prompt_tokens": 256, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 128}}
    writer.write(whole({"id": "1", "choices": [{"text": "a"}], "usage": usage}))
    await writer.drain()


@contextlib.asynccontextmanager
async def engines(*replies: Reply) -> AsyncIterator[list[StubEngine]]:
    """Stub engines that listen."""
    stubs = [StubEngine(reply) for reply in replies]
    try:
        for stub in stubs:
            await stub.start()
        yield stubs
    finally:
        for stub in stubs:
            await stub.stop()


@contextlib.asynccontextmanager
async def listening(app: ASGIApp, *, protocol: Any = "httptools") -> AsyncIterator[str]:
    """The URL of an application served here; `protocol` makes its connections."""
    config = uvicorn.Config(app, port=0, log_level="critical", http=protocol, ws="none", lifespan="on")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server._serve())
    async with asyncio.timeout(10):
        while not server.started:
            if serving.done():
                serving.result()
                raise AssertionError("the server ended before it was ready")
            await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


def no_events(url: str, **_options: object) -> Sequence[Source]:
    """A discovery that finds an engine without events."""
    raise ConfigError(f"{url}: publishes no events")


@contextlib.asynccontextmanager
async def routing(*stubs: StubEngine, **options: Any) -> AsyncIterator[str]:
    """The URL of a router in front of these engines; options are those of `router_settings`."""
    async with router(*stubs, **options) as (url, _):
        yield url


@contextlib.asynccontextmanager
async def router(*stubs: StubEngine, **options: Any) -> AsyncIterator[tuple[str, Service]]:
    """The same, and the service in it."""
    discover = options.pop("discover", no_events)
    subscribe = options.pop("subscribe", None)
    settings = router_settings(*(stub.url for stub in stubs), **options)
    extra = {} if subscribe is None else {"subscribe": subscribe}
    app = create_app(settings, discover=discover, **extra)
    async with listening(app, protocol=app.state.service.proxy.connect) as url:
        yield url, app.state.service


def router_settings(*urls: str, **options: Any) -> Settings:
    """Settings for these workers; an option is a whole section, or a key of the one section that has it."""
    defaults = Settings()
    sections: dict[str, Any] = {name: options.pop(name) for name in Settings.__struct_fields__ if name in options}
    for name, value in options.items():
        (section,) = (
            section
            for section in Settings.__struct_fields__
            if name in getattr(getattr(defaults, section), "__struct_fields__", ())
        )
        known = sections.get(section, getattr(defaults, section))
        sections[section] = type(known)(**{**msgspec.structs.asdict(known), name: value})
    return Settings(**{"workers": tuple(WorkerSettings(url=url) for url in urls), **sections})


class FakeSource:
    """One worker's source, with the test as the wire."""

    def __init__(self, source: Source, sink: EventSink, on_state: Callable[..., None]) -> None:
        self.is_closed = False
        self.states = {source.dp_rank: _state(State.CONNECTING)}
        self._worker = source.worker_id
        self._sink = sink
        self._on_state = on_state

    def store(self, tokens: Sequence[int], *, block_size: int, dp_rank: int = 0, cache_salt: str | None = None) -> None:
        """Announce that the worker holds these tokens from their first block on."""
        blocks = len(tokens) // block_size
        event = BlockStored(
            list(range(1, blocks + 1)), None, list(tokens), block_size, medium="GPU", cache_salt=cache_salt
        )
        batch = KVEventBatch(ts=0.0, events=[event], attn_dp_rank=dp_rank)
        self._sink.apply(self._worker, encode_batch(batch), seq=None, dp_rank=dp_rank)

    def say(self, state: State, *, dp_rank: int = 0, reconnects: int = 0) -> None:
        """Change the state of a rank."""
        self.states[dp_rank] = _state(state, SourceCounters(reconnects=reconnects))
        self._on_state(self._worker, dp_rank, self.states[dp_rank])


class FakeSubscriber:
    """Stands in for `kvevents.transport.Subscriber`; the workers' sources are in the order they came."""

    def __init__(self) -> None:
        self.opened: list[FakeSource] = []
        self._by_worker: dict[str, FakeSource] = {}

    def __call__(
        self, _sources: object, sink: EventSink, *, on_state: Callable[..., None], settings: object
    ) -> "FakeSubscriber":
        self._sink = sink
        self._on_state = on_state
        return self

    def add_source(self, source: Source) -> None:
        if source.worker_id in self._by_worker:
            self._by_worker[source.worker_id].states[source.dp_rank] = _state(State.CONNECTING)
        else:
            self._by_worker[source.worker_id] = FakeSource(source, self._sink, self._on_state)
            self.opened.append(self._by_worker[source.worker_id])

    def remove_source(self, worker_id: str, dp_rank: int | None = None) -> None:
        source = self._by_worker[worker_id]
        del source.states[dp_rank]
        if not source.states:
            del self._by_worker[worker_id]
            source.is_closed = True

    def state(self, worker_id: str, dp_rank: int | None = None) -> SourceState:
        return self._by_worker[worker_id].states[dp_rank]

    def close(self) -> None:
        """Nothing to close."""


def _state(state: State, counters: SourceCounters | None = None) -> SourceState:
    return SourceState(
        state=state,
        reason=f"told to be {state}",
        since=0.0,
        counters=counters or SourceCounters(),
        code=Reason.COMPLETE,
    )


def with_events(*, ranks: int = 1, block_size: int = 64) -> Callable[..., Sequence[Source]]:
    """A discovery that finds sources nobody publishes on."""

    def discover(_url: str, *, worker_id: str, **_options: object) -> Sequence[Source]:
        return rank_sources(worker_id, "tcp://127.0.0.1:5557", ranks, block_size=block_size)

    return discover


@contextlib.asynccontextmanager
async def fleet(number: int = 2, **options: Any) -> AsyncIterator[tuple[str, list[StubEngine], list[FakeSource]]]:
    """A router before stub engines with events, the engines, and their sources."""
    subscriber = FakeSubscriber()
    options.setdefault("discover", with_events())
    async with engines(*[answer] * number) as stubs, routing(*stubs, subscribe=subscriber, **options) as url:
        yield url, stubs, subscriber.opened
