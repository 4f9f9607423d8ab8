"""A client that writes its bytes itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Wire:
    """A connection to the router, with the test as the client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self) -> tuple[int, dict[str, str], bytes]:
        """The next reply: status, headers and the body without its framing."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(first.split(" ")[1])
        if "content-length" in headers:
            return status, headers, await self.reader.readexactly(int(headers["content-length"]))
        if headers.get("transfer-encoding") != "chunked":
            return status, headers, b"" if status == 100 else await self.reader.read()
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return status, headers, body

    async def ended(self) -> bytes:
        """What still comes until the router closes."""
        with contextlib.suppress(ConnectionResetError):
            return await self.reader.read()
        return b""


@contextlib.asynccontextmanager
async def connected(url: str, *, limit: int = 2**16) -> AsyncIterator[Wire]:
    host, port = url.removeprefix("http://").split(":")
    wire = Wire(*await asyncio.open_connection(host, int(port), limit=limit))
    try:
        yield wire
    finally:
        wire.writer.transport.abort()
