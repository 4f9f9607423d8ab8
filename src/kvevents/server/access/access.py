"""Two scopes with a token each, sessions for the dashboard, and what browsers may be made to send."""

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from kvevents.server.access.browsers import Browsers
from kvevents.server.access.guesses import Guesses
from kvevents.server.access.peers import Peers
from kvevents.server.access.sessions import Sessions
from kvevents.server.configuration import Secret, Settings
from kvevents.server.errors import HttpError

Headers = Iterable[tuple[bytes, bytes]]

COOKIE = "kvevents_session"
UNSAFE = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""Methods that change something."""

OPEN = frozenset({"/health", "/ready"})
"""Paths for probes: no token, from anywhere, and nothing in the answers but yes or no."""

_BROWSER_HEADERS = frozenset({b"host", b"origin", b"sec-fetch-site", b"x-forwarded-for"})

LOGIN, LOGOUT = "/login", "/logout"


class AccessCounters(msgspec.Struct):
    """All counts since the start.

    Attributes:
        missing_tokens: requests without a token where one is needed.
        wrong_tokens: requests with a wrong one.
        limited: requests that were refused unread, since their address had sent too many wrong ones.
        foreign_hosts: requests to the router under a name that is not its own.
        foreign_origins: requests that a page of somebody else made a browser send.
        logins: tokens exchanged for a session.
        logouts: sessions ended by their owners.
        stale_sessions: requests with a session that has expired, has ended or was never ours.
    """

    missing_tokens: int = 0
    wrong_tokens: int = 0
    limited: int = 0
    foreign_hosts: int = 0
    foreign_origins: int = 0
    logins: int = 0
    logouts: int = 0
    stale_sessions: int = 0


class Asked(NamedTuple):
    """A request, as far as access goes.

    Attributes:
        method: in capitals.
        path: without the query.
        headers: names in small letters.
        peer: the address that it came from, or that a trusted proxy names.
        is_secure: whether the browser speaks https, to us or to a trusted proxy.
    """

    method: str
    path: str
    headers: dict[bytes, bytes]
    peer: str
    is_secure: bool = False


class Access:
    """Lets requests through, or says why not. Lives on one event loop.

    Whoever sends a token in a header is no browser that was tricked, so that only requests without one are asked for
    their Host and Origin: those with a cookie, and all where no token is set.

    Args:
        settings: of the service.
        now: seconds, for limits and sessions.

    Attributes:
        counters: what was refused, and why.
        peers: who a request came from.
    """

    def __init__(self, settings: Settings, *, now: Callable[[], float] = time.time) -> None:
        security = settings.security
        self.counters = AccessCounters()
        self.peers = Peers(security.trusted_proxies)
        self._client = security.client_token
        self._admin = security.admin_token
        self._browsers = Browsers(settings.listen.host, security.allowed_hosts)
        self._guesses = Guesses(per_minute=security.wrong_tokens_per_minute, now=now)
        self._sessions = Sessions(lifetime_s=security.session_s, now=now)

    def admit_client(self, method: str, authorization: bytes, headers: Headers, peer: str) -> None:
        """Let a request to `/v1/*` through.

        Args:
            method: in capitals.
            authorization: the header's value; empty for none.
            headers: all of them, names in any case; looked through where no token is set.
            peer: where it comes from.

        Raises:
            HttpError: 401, 403 or 429.
        """
        if self._client is None:
            self._check_browser(method, _of_browsers(headers), has_cookie=False)
            return
        if self.peers.are_asked:
            peer = self.peers.address(peer, _of_browsers(headers))
        self._check_token(self._client, "client", authorization, peer)

    def admit_admin(self, asked: Asked) -> None:
        """Let a request to anything else through.

        Raises:
            HttpError: 401, 403 or 429.
        """
        if self._admin is None:
            self._check_browser(asked.method, asked.headers, has_cookie=False)
            return
        authorization = asked.headers.get(b"authorization", b"")
        session = session_of(asked.headers)
        if authorization or session is None:
            self._check_token(self._admin, "admin", authorization, asked.peer)
        elif self._sessions.holds(session):
            self._check_browser(asked.method, asked.headers, has_cookie=True)
        else:
            self.counters.stale_sessions += 1
            raise HttpError(401, "unauthorized", "the session has ended: log in again")

    def admit_anyone(self, asked: Asked) -> None:
        """Let a request through that needs no token, but not from somebody else's page.

        Raises:
            HttpError: 403.
        """
        self._check_browser(asked.method, asked.headers, has_cookie=False)

    def is_admin(self, asked: Asked) -> bool:
        """Whether a request comes from whoever runs the router, where that changes an answer and no more."""
        if self._admin is not None and b"authorization" not in asked.headers and session_of(asked.headers) is None:
            return False
        try:
            self.admit_admin(asked)
        except HttpError:
            return False
        return True

    def login(self, token: str, peer: str) -> str | None:
        """A session for whoever knows the admin token; None where there is none to know.

        Raises:
            HttpError: 401, 429.
        """
        if self._admin is None:
            return None
        self._check_token(self._admin, "admin", b"Bearer " + token.encode(), peer, is_login=True)
        self.counters.logins += 1
        return self._sessions.begin()

    def logout(self, headers: dict[bytes, bytes]) -> None:
        """End the session that a request comes with."""
        session = session_of(headers)
        if session is not None and self._sessions.end(session):
            self.counters.logouts += 1

    @property
    def session_s(self) -> int:
        """How long a session holds."""
        return int(self._sessions.lifetime_s)

    def _check_token(
        self, token: Secret, scope: str, authorization: bytes, peer: str, *, is_login: bool = False
    ) -> None:
        offered = _bearer(authorization)
        if not offered:
            self.counters.missing_tokens += 1
            raise HttpError(401, "unauthorized", f"expected the {scope} token as 'Authorization: Bearer ...'")
        if self._guesses.is_over(peer, is_login=is_login):
            self.counters.limited += 1
            raise HttpError(429, "too_many_wrong_tokens", "too many wrong tokens from this address", retry_after_s=60)
        if not token.matches(offered):
            self.counters.wrong_tokens += 1
            self._guesses.wrong(peer)
            raise HttpError(401, "unauthorized", f"this is not the {scope} token")
        self._guesses.right(peer)

    def _check_browser(self, method: str, headers: dict[bytes, bytes], *, has_cookie: bool) -> None:
        if not self._browsers.knows_host(headers):
            self.counters.foreign_hosts += 1
            raise HttpError(
                403, "host_not_allowed", "the Host header names somebody else: add the name to [security] allowed_hosts"
            )
        if method in UNSAFE and not self._browsers.is_own_page(headers, must_say=has_cookie):
            self.counters.foreign_origins += 1
            raise HttpError(403, "origin_not_allowed", "this comes from another page than the router's own")


def _of_browsers(headers: Headers) -> dict[bytes, bytes]:
    """What browsers and proxies say of a request."""
    return {key: value for name, value in headers if (key := name.lower()) in _BROWSER_HEADERS}


def session_of(headers: dict[bytes, bytes]) -> str | None:
    """The session in a request's cookies."""
    for part in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return None


def _bearer(authorization: bytes) -> bytes:
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""
