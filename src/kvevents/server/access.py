"""Who may call what: two scopes, one bearer token each."""

from starlette.types import ASGIApp, Receive, Scope, Send

from kvevents.server.configuration import Secret
from kvevents.server.errors import HttpError, is_openai

OPEN = frozenset({"/health", "/ready"})
"""Paths for probes: no token, and nothing in the answers but yes or no."""


class Access:
    """ASGI middleware: `/v1/*` takes the client's token, everything else but health the admin's."""

    def __init__(self, app: ASGIApp, *, client: Secret | None, admin: Secret | None) -> None:
        self._app = app
        self._client = client
        self._admin = admin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            client_scope = is_openai(scope["path"])
            token = self._client if client_scope else self._admin
            if token is not None and not token.matches(_bearer(scope)):
                name = "client" if client_scope else "admin"
                error = HttpError(401, "unauthorized", f"expected the {name} token as 'Authorization: Bearer ...'")
                await error.response(scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _bearer(scope: Scope) -> bytes:
    """The token that came with the request; empty when there is none."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = bytes(value).partition(b" ")
            return token.strip() if scheme.lower() == b"bearer" else b""
    return b""
