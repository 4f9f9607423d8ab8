"""The page at `/`: its files, and what a browser may do with them."""

import asyncio
import gzip
import hashlib
import importlib.util
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from kvevents.server.errors import HttpError

_STATIC = files("kvevents.server.dashboard") / "static"

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing from elsewhere, nothing inline."""

_STYLE_IDS = re.compile(rb'getElementById\("([0-9a-f]{64})"\)')
"""Parts of plotly's script that this page does not use (maps) bring a style element of their own, which the policy does
not allow, unless an element with its id is there already: so one is there, and is empty."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}

MISSING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>kvevents</title>
<h1>kvevents serves</h1>
<p>The page that shows what it does needs the extra <code>dashboard</code>, which is not installed here:</p>
<pre>pip install 'kvevents[dashboard]'</pre>
<p>Then start the router again. The figures are at <a href="/stats">/stats</a>, and as they change at
<a href="/stream">/stream</a>; Prometheus reads <a href="/metrics">/metrics</a>.</p>
</html>
"""


async def index(_request: Request) -> Response:
    """`GET /`: the page, or how to install it."""
    if await asyncio.to_thread(_plotly_path) is None:
        return HTMLResponse(MISSING, headers=HEADERS)
    return await _whole("index.html")


async def login(status: int = 200) -> Response:
    """What `GET /` answers to whoever has not logged in."""
    return await _whole("login.html", status=status)


async def asset(request: Request) -> Response:
    """`GET /dashboard/{name}`: a file of the page. None holds a figure, so they are open to all."""
    file = await asyncio.to_thread(_read, request.path_params["name"])
    headers = {**HEADERS, "etag": file.tag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.packed, media_type=file.kind, headers={**headers, "content-encoding": "gzip"})
    return Response(file.body, media_type=file.kind, headers=headers)


ROUTES = [Route("/", index), Route("/dashboard/{name:path}", asset)]


class _File(NamedTuple):
    """A file as it is served: its bytes, plain and packed, their type, and a tag that changes with them."""

    body: bytes
    packed: bytes
    kind: str
    tag: str


async def _whole(name: str, status: int = 200) -> Response:
    file = await asyncio.to_thread(_read, name)
    return Response(file.body, status, media_type=file.kind, headers=HEADERS)


@cache
def _names() -> frozenset[str]:
    """Files that there are, as they stand in addresses."""
    top = [entry.name for entry in _STATIC.iterdir() if entry.is_file()]
    panels = [f"panels/{entry.name}" for entry in (_STATIC / "panels").iterdir() if entry.is_file()]
    return frozenset(top + panels)


@cache
def _read(name: str) -> _File:
    """A file, read and packed once.

    Raises:
        HttpError: 404, there is no such file.
    """
    if name == "plotly.min.js" and (path := _plotly_path()) is not None:
        body = path.read_bytes()
    elif name in _names():
        body = _STATIC.joinpath(*name.split("/")).read_bytes()
    else:
        raise HttpError(404, "not_found", "there is no such file of the page")
    if name == "index.html" and (path := _plotly_path()) is not None:
        stand_ins = (
            b'<template id="%s"></template>' % one for one in sorted(set(_STYLE_IDS.findall(path.read_bytes())))
        )
        body = body.replace(b"</body>", b"".join(stand_ins) + b"</body>")
    tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
    return _File(body, gzip.compress(body, compresslevel=6, mtime=0), _TYPES[Path(name).suffix], tag)


@cache
def _plotly_path() -> Path | None:
    """Where the script is that plotly brings with it."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return path if path.is_file() else None
