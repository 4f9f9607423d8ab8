"""Addresses of ZMQ sockets: read, shifted to a rank, made fit to bind or to connect."""

from typing import NamedTuple, Self

from kvevents.errors import ConfigError

_MAX_PORT = 65_535
_LOOPBACK_OF = {
    "*": "127.0.0.1",
    "0.0.0.0": "127.0.0.1",  # noqa: S104 (read here; bound only where the user wrote it)
    "::": "::1",
    "": "127.0.0.1",
}
"""Hosts that mean every interface, and where to connect to reach what bound them."""


class Endpoint(NamedTuple):
    """One address, taken apart.

    Attributes:
        transport: `tcp`, `ipc` or `inproc`.
        host: host without brackets (tcp); empty elsewhere.
        port: the port (tcp), 0 for one that the system chooses; 0 elsewhere.
        name: path or name (ipc, inproc); empty for tcp.
    """

    transport: str
    host: str
    port: int
    name: str

    @classmethod
    def parse(cls, endpoint: str, /) -> Self:
        """Reads `tcp://host:port`, `ipc://path` or `inproc://name`.

        Raises:
            ConfigError: for anything else; the message names what is wrong with it.
        """
        if not isinstance(endpoint, str):
            raise ConfigError(f"endpoint: expected a string such as 'tcp://127.0.0.1:5557', got {endpoint!r}")
        transport, separator, rest = endpoint.partition("://")
        if not separator or transport not in {"tcp", "ipc", "inproc"} or not rest:
            raise ConfigError(
                f"endpoint {endpoint!r}: expected tcp://host:port, ipc://path or inproc://name"
                " (host may be * to bind every interface, port may be * or 0 to bind a free one)"
            )
        if transport != "tcp":
            return cls(transport, "", 0, rest)
        host, colon, port = rest.rpartition(":")
        number = 0 if port == "*" else int(port) if port.isascii() and port.isdigit() else -1
        if not colon or not 0 <= number <= _MAX_PORT:
            raise ConfigError(f"endpoint {endpoint!r}: expected a port from 0 to {_MAX_PORT} or * after the last colon")
        return cls(transport, host.removeprefix("[").removesuffix("]"), number, "")

    def __str__(self) -> str:
        if self.transport != "tcp":
            return f"{self.transport}://{self.name}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port or '*'}"

    @property
    def needs_ipv6(self) -> bool:
        """Whether the socket has to speak IPv6: the host is an IPv6 literal."""
        return ":" in self.host

    @property
    def is_wildcard(self) -> bool:
        """Whether it names every interface of the machine."""
        return self.transport == "tcp" and self.host in _LOOPBACK_OF

    def to_bind(self) -> str:
        """The address as ZMQ binds it: `localhost` by number, since ZMQ binds no host names."""
        return str(self._replace(host="127.0.0.1") if self.host == "localhost" else self)

    def to_connect(self, host: str | None = None) -> str:
        """The address as ZMQ connects to it: a wildcard becomes `host`, or loopback.

        Raises:
            ConfigError: if the port is left to the system, which only the side that binds can do.
        """
        if self.transport == "tcp" and self.port == 0:
            raise ConfigError(
                f"endpoint {str(self)!r}: expected the port to connect to; only a side that binds may leave it open"
            )
        if self.is_wildcard:
            return str(self._replace(host=host or _LOOPBACK_OF[self.host]))
        return str(self._replace(host="127.0.0.1") if self.host == "localhost" else self)


def binds(endpoint: str) -> bool:
    """Whether a publisher that is given `endpoint` binds it, as SGLang and vLLM infer it.

    They bind what has `*` or `::` in it, ipc and inproc, and connect to everything else, so that for
    `tcp://127.0.0.1:5557` the *subscriber* has to bind. Two more cannot be connected to and bind here:
    the host `0.0.0.0` and the port 0.
    """
    parsed = Endpoint.parse(endpoint)
    return parsed.transport != "tcp" or "*" in endpoint or "::" in endpoint or parsed.is_wildcard or parsed.port == 0


def rank_endpoint(endpoint: str, rank: int) -> str:
    """The endpoint of data-parallel rank `rank`, given that of rank 0.

    tcp ports are counted up by the rank (what is left to the system stays so), ipc paths and inproc names of
    ranks above 0 get the suffix `_dp<rank>`.

    Raises:
        ConfigError: if the rank is negative or its port would be above 65,535.
    """
    parsed = Endpoint.parse(endpoint)
    if rank < 0:
        raise ConfigError(f"data-parallel rank: expected 0 or more, got {rank}")
    if rank == 0:
        return endpoint
    if parsed.port == 0 and (parsed.transport == "tcp" or parsed.name == "*"):
        return endpoint
    if parsed.transport != "tcp":
        return f"{endpoint}_dp{rank}"
    if parsed.port + rank > _MAX_PORT:
        raise ConfigError(
            f"endpoint {endpoint!r}: rank {rank} would need port {parsed.port + rank};"
            f" choose a base port of at most {_MAX_PORT - rank}"
        )
    return str(parsed._replace(port=parsed.port + rank))
