"""Sockets that others connect to and read from: live batches, replays and snapshots."""

import zmq

from kvevents.transport.security import PublisherKeys
from kvevents.transport.sockets import ZmqContext, ZmqSocket, limit_requests, open_socket


def open_served(kind: int, endpoint: str, context: ZmqContext, *, hwm: int, keys: PublisherKeys | None) -> ZmqSocket:
    """A socket that is not bound or connected yet, with every bound that it needs.

    Args:
        kind: PUB, XPUB or ROUTER.
        endpoint: what it is for.
        context: whose it is (see `open_socket`).
        hwm: messages queued for one consumer.
        keys: lets in those who are listed; None: everybody, in the clear.

    Raises:
        ConfigError: a key file that cannot be used.
        TransportError: the process has too many sockets open.
    """
    sock = open_socket(kind, endpoint, context)
    try:
        sock.setsockopt(zmq.SNDHWM, hwm)
        limit_requests(sock)
        if keys is not None:
            keys.secure(sock)
    except BaseException:
        sock.close(0)
        raise
    return sock
