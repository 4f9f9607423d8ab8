"""Who a request came from, where proxies stand in front."""

import ipaddress
from collections.abc import Iterable


class Peers:
    """Believes what trusted proxies say of whom they speak for, and nobody else.

    Args:
        trusted_proxies: addresses and networks.
    """

    def __init__(self, trusted_proxies: Iterable[str]) -> None:
        self._trusted = [ipaddress.ip_network(proxy) for proxy in trusted_proxies]

    @property
    def are_asked(self) -> bool:
        """Whether there is a proxy to be believed."""
        return bool(self._trusted)

    def address(self, peer: str, headers: dict[bytes, bytes]) -> str:
        """The address of the client: the last one that was not told by a trusted proxy of a trusted proxy."""
        if not self._trusted or not self._trusts(peer):
            return peer
        told = [part.strip() for part in headers.get(b"x-forwarded-for", b"").decode("latin-1").split(",")]
        for address in reversed(told):
            if not _is_address(address):
                return peer
            peer = address
            if not self._trusts(address):
                return address
        return peer

    def is_secure(self, peer: str, scheme: str, headers: dict[bytes, bytes]) -> bool:
        """Whether the browser's side of the connection is encrypted."""
        if scheme == "https":
            return True
        return self._trusts(peer) and headers.get(b"x-forwarded-proto", b"").lower() == b"https"

    def _trusts(self, peer: str) -> bool:
        if not self._trusted or not _is_address(peer):
            return False
        address = ipaddress.ip_address(peer)
        return any(address in network for network in self._trusted)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
