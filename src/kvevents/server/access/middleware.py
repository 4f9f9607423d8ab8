"""Access in front of the application."""

from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kvevents.server.access.access import COOKIE, LOGIN, LOGOUT, OPEN, Access, Asked
from kvevents.server.body import read_body
from kvevents.server.dashboard.page import login as login_page
from kvevents.server.errors import HttpError, is_openai

ASSETS = "/dashboard/"
"""Files of the page: they hold no figures."""

_MOST_LOGIN_BYTES = 4096
_FORM = b"application/x-www-form-urlencoded"


class AccessMiddleware:
    """ASGI middleware: nothing reaches the application that `Access` does not let through.

    `scope["is_admin"]` tells the paths that are open to all whether whoever asks may see more.
    """

    def __init__(self, app: ASGIApp, *, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            asked = asked_by(self._access, scope)
            try:
                self._admit(asked, scope)
            except HttpError as error:
                response = error.response(asked.path)
                if error.status == 401 and asked.path == "/" and asked.method in {"GET", "HEAD"}:
                    response = await login_page(401)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _admit(self, asked: Asked, scope: Scope) -> None:
        access = self._access
        if asked.path in OPEN:
            scope["is_admin"] = access.is_admin(asked)
        elif is_openai(asked.path):
            access.admit_client(
                asked.method, asked.headers.get(b"authorization", b""), asked.headers.items(), asked.peer
            )
        elif asked.path in {LOGIN, LOGOUT} or asked.path.startswith(ASSETS):
            access.admit_anyone(asked)
        else:
            access.admit_admin(asked)


class Login:
    """The endpoints that begin and end a session."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def login(self, request: Request) -> Response:
        """`POST /login` with `{token}`, as JSON or from a form: the admin token for a session in a cookie."""
        asked = asked_by(self._access, request.scope)
        is_form = asked.headers.get(b"content-type", b"").startswith(_FORM)
        body = await read_body(request.scope, request.receive, limit=_MOST_LOGIN_BYTES)
        try:
            session = self._access.login(_token(body, is_form=is_form), asked.peer)
        except HttpError as error:
            if is_form and error.status == 401:
                return await login_page(401)
            raise
        response = RedirectResponse("/", 303) if is_form else Response(status_code=204)
        if session is not None:
            _set_cookie(response, session, lifetime_s=self._access.session_s, is_secure=asked.is_secure)
        return response

    async def logout(self, request: Request) -> Response:
        """`POST /logout`: end the session that the cookie holds."""
        asked = asked_by(self._access, request.scope)
        self._access.logout(asked.headers)
        is_form = asked.headers.get(b"content-type", b"").startswith(_FORM)
        response = RedirectResponse("/", 303) if is_form else Response(status_code=204)
        _set_cookie(response, "", lifetime_s=0, is_secure=asked.is_secure)
        return response


def asked_by(access: Access, scope: Scope) -> Asked:
    """A request as access sees it."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        headers[name] = headers[name] + (b"; " if name == b"cookie" else b",") + value if name in headers else value
    client = scope.get("client")
    peer = str(client[0]) if client else ""
    return Asked(
        method=scope["method"],
        path=scope["path"],
        headers=headers,
        peer=access.peers.address(peer, headers),
        is_secure=access.peers.is_secure(peer, scope.get("scheme", "http"), headers),
    )


def _token(body: bytes, *, is_form: bool) -> str:
    """The token in a body; empty when there is none.

    Raises:
        HttpError: 400, the body is neither form nor JSON.
    """
    try:
        if is_form:
            return parse_qs(body.decode()).get("token", [""])[0].strip()
        fields: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
        token = fields.get("token")
        return token.strip() if isinstance(token, str) else ""
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError, ValueError):
        raise HttpError(400, "bad_request", "body: expected JSON with a token, or a form") from None


def _set_cookie(response: Response, value: str, *, lifetime_s: int, is_secure: bool) -> None:
    cookie: SimpleCookie = SimpleCookie()
    cookie[COOKIE] = value
    cookie[COOKIE].update({"path": "/", "max-age": str(lifetime_s), "samesite": "Strict"})
    cookie[COOKIE]["httponly"] = True
    if is_secure:
        cookie[COOKIE]["secure"] = True
    response.headers.append("set-cookie", cookie[COOKIE].OutputString())
