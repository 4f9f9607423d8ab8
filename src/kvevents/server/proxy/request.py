"""A client's request as it was read."""

from urllib.parse import unquote_to_bytes

from kvevents.server.errors import HttpError
from kvevents.server.proxy.heads import Headers, RequestHead


class Request:
    """One request; complete before anything is done about it.

    Attributes:
        method: in capitals.
        target: path and query as they came.
        path: the path alone, decoded.
        headers: as they came.
        head: what the proxy reads of them; None for requests that the application answers.
        is_http_1_0: whether the client speaks HTTP/1.0, which knows no chunks.
        keep_alive: whether the client means to send another one on its connection.
        body: whole, once it is complete.
        refusal: why it will not be answered as asked; its body is not kept then.
    """

    __slots__ = (
        "_more",
        "body",
        "head",
        "headers",
        "is_http_1_0",
        "keep_alive",
        "method",
        "path",
        "refusal",
        "size",
        "target",
    )

    def __init__(self, method: bytes, target: bytes, headers: Headers, *, is_http_1_0: bool, keep_alive: bool) -> None:
        self.method = method
        self.target = target if target.startswith(b"/") else _origin_form(target)
        self.headers = headers
        self.is_http_1_0 = is_http_1_0
        self.keep_alive = keep_alive
        self.head: RequestHead | None = None
        self.refusal: HttpError | None = None
        self.body = b""
        self.size = 0
        self._more: bytearray | None = None
        path = self.target.partition(b"?")[0]
        self.path = (unquote_to_bytes(path) if b"%" in path else path).decode(errors="replace")

    def add(self, piece: bytes) -> None:
        """Take a piece of the body. Most come in one; those in millions cost no more than their bytes."""
        if self._more is not None:
            self._more += piece
        elif self.body:
            self._more = bytearray(self.body) + piece
        else:
            self.body = piece

    def complete(self) -> None:
        """The body is whole."""
        if self._more is not None:
            self.body, self._more = bytes(self._more), None

    def let_go(self) -> None:
        """The body is not needed any more."""
        self.body = b""

    def refuse(self, error: HttpError) -> None:
        """Do not answer as asked; the first reason counts."""
        self.refusal = self.refusal or error
        self.body, self._more = b"", None


def _origin_form(target: bytes) -> bytes:
    """The path in an absolute target (`http://host/path`), which servers have to take."""
    _, has_scheme, rest = target.partition(b"://")
    _, has_path, path = rest.partition(b"/")
    return b"/" + path if has_scheme and has_path else b"/"
