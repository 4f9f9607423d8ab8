"""Ports that are free for all ranks at once."""

import contextlib
import socket

from kvevents.errors import TransportError
from kvevents.transport.endpoints import Endpoint

_ATTEMPTS = 100


def settle_ports(endpoints: list[str], ranks: int) -> list[str]:
    """The endpoints with every open tcp port (0 or `*`) replaced by a base port that is free for all ranks.

    Rank r of an endpoint will take port base + r. The ports are free now; whoever binds them has to cope with
    another process being faster.

    Raises:
        TransportError: there is no such port on a host.
    """
    with contextlib.ExitStack() as held:
        return [_settle(Endpoint.parse(endpoint), ranks, held) for endpoint in endpoints]


def _settle(endpoint: Endpoint, ranks: int, held: contextlib.ExitStack) -> str:
    if endpoint.transport != "tcp" or endpoint.port:
        return str(endpoint)
    host = endpoint.to_bind().removeprefix("tcp://").rpartition(":")[0].strip("[]").replace("*", "")
    family = socket.AF_INET6 if endpoint.needs_ipv6 else socket.AF_INET
    for _ in range(_ATTEMPTS):
        with contextlib.ExitStack() as run:
            try:
                base = _reserve(family, host, 0, run)
                for rank in range(1, ranks):
                    _reserve(family, host, base + rank, run)
            except (OSError, OverflowError) as error:
                reason = error
                continue
            held.enter_context(run.pop_all())
            return str(endpoint._replace(port=base))
    raise TransportError(f"{endpoint}: found no {ranks} free ports in a row: {reason}")


def _reserve(family: socket.AddressFamily, host: str, port: int, run: contextlib.ExitStack) -> int:
    probe = run.enter_context(socket.socket(family))
    probe.bind((host, port))
    number: int = probe.getsockname()[1]
    return number
