"""What a browser can be made to send by somebody else's page, and how it shows."""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

_OWN = frozenset({b"same-origin", b"none"})
"""`sec-fetch-site` of a page's own requests, and of those that the user typed."""

_MOST_KNOWN = 64
"""Host headers that are remembered as known: nearly all requests come with one of a few."""


class Browsers:
    """Knows the router's own names.

    A name that somebody else owns can be pointed at this machine (DNS rebinding): then their page speaks to the router
    as to its own server. So only names that are known are answered; addresses cannot be rebound.

    Args:
        listen_host: where the router listens.
        allowed_hosts: further names.
    """

    def __init__(self, listen_host: str, allowed_hosts: Iterable[str]) -> None:
        self._names = {"localhost", listen_host.strip("[]").lower(), *(name.lower() for name in allowed_hosts)}
        self._known: set[bytes] = set()

    def knows_host(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a request names the router by a name of its own, or by none."""
        host = headers.get(b"host", b"")
        if host in self._known:
            return True
        is_known = self._is_known(host.decode("latin-1").lower())
        if is_known and len(self._known) < _MOST_KNOWN:
            self._known.add(host)
        return is_known

    def _is_known(self, host: str) -> bool:
        name = _without_port(host)
        if not name or name in self._names or host in self._names or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    @staticmethod
    def is_own_page(headers: dict[bytes, bytes], *, must_say: bool) -> bool:
        """Whether a request comes from a page of the router.

        Args:
            headers: of the request.
            must_say: whether one that does not say where it comes from is refused: browsers say it.
        """
        origin = headers.get(b"origin")
        if origin is None:
            site = headers.get(b"sec-fetch-site")
            return site in _OWN if site is not None else not must_say
        return urlsplit(origin).netloc.lower() == headers.get(b"host", b"").lower()


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host
