"""Requests that the application answers, on a connection of the proxy."""

import asyncio
import logging
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Scope

from kvevents.server.proxy.connection import ClientConnection
from kvevents.server.proxy.heads import own_head
from kvevents.server.proxy.request import Request

if TYPE_CHECKING:
    from kvevents.server.proxy.proxy import Proxy

_log = logging.getLogger("kvevents.server")


class ApplicationCall:
    """One request as a call of the ASGI application.

    The control endpoints keep their framework and the data plane stays free of it, on one port and in one connection:
    the connection reads requests for both, so what is particular to ASGI is only this: the request's body is there
    before the call, and the reply goes straight to the transport.
    """

    def __init__(self, proxy: "Proxy", client: ClientConnection, request: Request, app: ASGIApp) -> None:
        self._proxy = proxy
        self._client = client
        self._request = request
        self._app = app
        self._body: bytes | None = request.body
        self._gone = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._start: Message | None = None
        self._is_chunked = False
        self._is_complete = False
        self._keep_alive = client.keeps_alive(request)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Call the application."""
        self._task = asyncio.get_running_loop().create_task(self._call())
        self._proxy.hold(self._task)

    def client_left(self) -> None:
        """Let the application know, and nothing more of its reply be written."""
        self._gone.set()
        self._may_write.set()

    def pause(self) -> None:
        self._may_write.clear()

    def resume(self) -> None:
        self._may_write.set()

    def drain(self) -> None:
        """The process is about to end: a stream that would go on for ever ends now."""
        if self._is_chunked:
            self.cut()

    def cut(self) -> None:
        """End whatever it does."""
        self.client_left()
        self._client.transport.close()

    async def _call(self) -> None:
        try:
            await self._app(self._scope(), self._receive, self._send)
        except Exception:
            _log.exception("%s %s failed", self._request.method.decode(), self._request.path)
        finally:
            self._proxy.release(self._request)
            if not self._gone.is_set() and not self._is_complete:
                self._client.transport.abort()  # half a reply must not look whole

    def _scope(self) -> Scope:
        request = self._request
        path, _, query = request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.0" if request.is_http_1_0 else "1.1",
            "method": request.method.decode("ascii"),
            "scheme": "http",
            "path": request.path,
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers],
            "client": self._client.transport.get_extra_info("peername"),
            "server": self._client.transport.get_extra_info("sockname"),
            "state": self._proxy.application_state(),
        }

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._is_complete:
            await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self._start = message
            return
        await self._may_write.wait()
        if self._gone.is_set() or self._is_complete:
            return
        body, has_more = message.get("body", b""), message.get("more_body", False)
        parts = [] if self._start is None else [self._head(self._start)]
        self._start = None
        if self._request.method != b"HEAD":
            if not self._is_chunked:
                parts.append(body)
            elif body:
                parts.append(b"%x\r\n%b\r\n" % (len(body), body))
            if self._is_chunked and not has_more:
                parts.append(b"0\r\n\r\n")
        if data := b"".join(parts):
            self._client.write(data)
        if not has_more:
            self._is_complete = True
            self._gone.set()
            self._client.answered(keep_alive=self._keep_alive)

    def _head(self, start: Message) -> bytes:
        headers = [*start["headers"], *self._proxy.date()]
        if not any(name == b"content-length" for name, _ in headers) and start["status"] not in {204, 304}:
            if self._request.is_http_1_0:
                self._keep_alive = False
            else:
                self._is_chunked = True
                headers.append((b"transfer-encoding", b"chunked"))
        if not self._keep_alive:
            headers.append((b"connection", b"close"))
        return own_head(start["status"], headers)
