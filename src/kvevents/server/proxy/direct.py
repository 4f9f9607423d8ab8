"""Requests that the router answers itself without its framework: what is asked for often."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from kvevents.server.errors import as_http_error, is_openai
from kvevents.server.proxy.connection import ClientConnection
from kvevents.server.proxy.request import Request

if TYPE_CHECKING:
    from kvevents.server.proxy.proxy import Proxy

Handler: TypeAlias = Callable[[Request], "bytes | Awaitable[bytes]"]
"""Gives the JSON that answers a request, at once where it can."""

_log = logging.getLogger("kvevents.server")
_JSON = [(b"content-type", b"application/json")]


class DirectAnswer:
    """One request as one call; its reply is whole and goes straight to the transport."""

    def __init__(self, proxy: "Proxy", client: ClientConnection, request: Request, handler: Handler) -> None:
        self._proxy = proxy
        self._client = client
        self._request = request
        self._handler = handler
        self._keep_alive = client.keeps_alive(request)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Answer, or begin to."""
        try:
            answer = self._handler(self._request)
        except Exception as error:
            self._fail(error)
            return
        if isinstance(answer, bytes):
            self._reply(answer)
        else:
            self._task = asyncio.get_running_loop().create_task(self._wait(answer))
            self._proxy.hold(self._task)

    def client_left(self) -> None:
        """Nobody waits for the answer any more."""
        if self._task is not None:
            self._task.cancel()
        self._proxy.release(self._request)

    def pause(self) -> None:
        """There is nothing to hold back."""

    def resume(self) -> None:
        """There is nothing to go on with."""

    def drain(self) -> None:
        """It ends soon by itself."""

    def cut(self) -> None:
        """The process ends."""
        self.client_left()
        self._client.transport.close()

    async def _wait(self, answer: Awaitable[bytes]) -> None:
        try:
            body = await answer
        except Exception as error:
            self._fail(error)
        else:
            self._reply(body)

    def _reply(self, body: bytes) -> None:
        self._end(200, _JSON, body)

    def _fail(self, error: Exception) -> None:
        told = as_http_error(error)
        if told.status == 500:
            _log.error("%s %s failed", self._request.method.decode(), self._request.path, exc_info=error)
        self._end(told.status, told.headers, told.body(openai=is_openai(self._request.path)))

    def _end(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self._proxy.release(self._request)
        self._client.reply(status, headers, body, keep_alive=self._keep_alive)
        self._client.answered(keep_alive=self._keep_alive)
