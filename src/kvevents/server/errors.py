"""What goes wrong over HTTP, and how it is said: OpenAI's shape under /v1, our own elsewhere."""

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kvevents.errors import ConfigError
from kvevents.routing import NoWorkerError

_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_CODES = {404: "not_found", 405: "method_not_allowed"}


class HttpError(Exception):
    """A request that cannot be answered as asked.

    Attributes:
        status: of the HTTP reply.
        code: stable word for programs.
        message: for people: what was expected, what came, what to do.
        retry_after_s: when to try again; None when that would not help.
    """

    def __init__(self, status: int, code: str, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status
        self.code = code
        self.message = message

    def body(self, *, openai: bool) -> bytes:
        """The error as JSON."""
        error: dict[str, str | None] = {"code": self.code, "message": self.message}
        if openai:
            kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
            error |= {"type": kind, "param": None}
        return msgspec.json.encode({"error": error})

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Of the reply."""
        headers = [(b"content-type", b"application/json")]
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after_s))
        return headers

    def response(self, path: str) -> Response:
        """The reply to a request for `path`."""
        response = Response(self.body(openai=is_openai(path)), self.status)
        response.raw_headers.extend(self.headers)
        return response


def is_openai(path: str) -> bool:
    """Whether errors under this path have OpenAI's shape."""
    return path.startswith("/v1/")


def as_http_error(error: Exception) -> HttpError:
    """How an exception is said over HTTP."""
    match error:
        case HttpError():
            return error
        case HTTPException():
            return HttpError(error.status_code, _CODES.get(error.status_code, "bad_request"), error.detail)
        case ClientDisconnect():
            return HttpError(499, "client_left", "the client left before its request was complete")
        case NoWorkerError():
            return HttpError(503, "no_worker", str(error))
        case ConfigError():
            return HttpError(400, "bad_request", str(error))
        case _:
            return HttpError(500, "internal_error", "the router failed on this request; its log says where")


async def respond(request: Request, error: Exception) -> Response:
    """Exception handler of the application."""
    response = as_http_error(error).response(request.url.path)
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response
