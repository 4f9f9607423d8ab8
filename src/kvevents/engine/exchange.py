"""One client waiting for one request."""

import asyncio
from array import array
from types import TracebackType
from typing import Any, Self

from starlette.types import Receive

from kvevents.engine.engine import Engine
from kvevents.engine.protocol import RequestError
from kvevents.engine.request import RequestState


class Exchange:
    """A request and the connection that waits for it: leaving the context gives up what is not done.

    Args:
        engine: where the request runs.
        receive: the connection's ASGI receive, its body already read.
        prompt: token ids.
        options: further arguments of `Engine.submit`.

    Raises:
        CapacityError, ConfigError: as `Engine.submit`.
    """

    def __init__(self, engine: Engine, receive: Receive, prompt: "array[int]", **options: Any) -> None:
        self._engine = engine
        self._receive = receive
        self._news = asyncio.Event()
        self._is_client_gone = False
        self.request = engine.submit(prompt, on_update=self._news.set, **options)

    async def __aenter__(self) -> Self:
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        self._engine.abort(self.request)

    async def news(self) -> bool:
        """Wait for outputs or the end; False when the client has hung up.

        Raises:
            RequestError: the engine is stopping, or has failed.
        """
        await self._news.wait()
        self._news.clear()
        if self._is_client_gone:
            return False
        if self.request.state is RequestState.ABORTED:
            why = "is stopping" if self._engine.failure is None else "has failed"
            raise RequestError(f"the engine {why} and has given this request up", status=503)
        return True

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_client_gone = True
        self._news.set()
