"""Request bodies: read whole, up to a limit."""

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from kvevents.server.errors import HttpError


async def read_body(scope: Scope, receive: Receive, *, limit: int) -> bytes:
    """The body of a request.

    Raises:
        HttpError: 413, it is longer than `limit` bytes; said by the header or found while reading.
        ClientDisconnect: the client left before it was complete.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > limit:
            raise _too_large(limit)
    chunks = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(limit: int) -> HttpError:
    return HttpError(413, "body_too_large", f"expected a body of at most {limit} bytes, got more")
