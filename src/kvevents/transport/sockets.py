"""Opens ZMQ sockets with errors that name the address and what to do."""

import contextlib
import errno
import os
import socket
from typing import TypeAlias

import zmq

from kvevents.errors import TransportError
from kvevents.transport.endpoints import Endpoint

ZmqContext: TypeAlias = zmq.Context[zmq.Socket[bytes]]
ZmqSocket: TypeAlias = zmq.Socket[bytes]

_MAX_SOCKETS = 65_536
_MAX_REQUEST_BYTES = 4_096


def new_context() -> ZmqContext:
    """A context with room for many sources; who made it ends it with `term`."""
    context = zmq.Context[zmq.Socket[bytes]]()
    context.set(zmq.MAX_SOCKETS, min(_MAX_SOCKETS, context.get(zmq.SOCKET_LIMIT)))
    return context


def open_socket(kind: int, endpoint: str, own: ZmqContext) -> ZmqSocket:
    """A socket for `endpoint`, of the context `own`, or for inproc, where both sides must share one, of the process's.

    Raises:
        TransportError: the process has too many open.
    """
    context = zmq.Context.instance() if Endpoint.parse(endpoint).transport == "inproc" else own
    try:
        return context.socket(kind)
    except zmq.ZMQError as error:
        raise no_socket(endpoint, error) from error


def limit_requests(sock: ZmqSocket) -> None:
    """For a socket that publishes or repeats: who sends it more than a request or a topic is disconnected.

    The length that a message announces is enough for that; no memory is taken for it.
    """
    sock.setsockopt(zmq.MAXMSGSIZE, _MAX_REQUEST_BYTES)


def no_socket(endpoint: str, error: zmq.ZMQError) -> TransportError:
    """A socket that could not be made, in words."""
    hint = "; raise the process's limit of open files" if error.errno == errno.EMFILE else ""
    return TransportError(f"no socket for {endpoint}: {error.strerror}{hint}")


def bind_socket(sock: ZmqSocket, endpoint: str) -> str:
    """Binds and returns the address in use, with the port that the system chose if it was left open.

    Raises:
        TransportError: the address is in use, not of this machine, or not permitted.
    """
    parsed = Endpoint.parse(endpoint)
    if parsed.transport == "ipc" and _is_served(parsed.name):
        # ZMQ would take the path away from whoever listens there, without a word.
        raise TransportError(f"{endpoint}: address in use: another process listens there; choose another path")
    sock.setsockopt(zmq.IPV6, int(parsed.needs_ipv6))
    try:
        sock.bind(parsed.to_bind())
    except zmq.ZMQError as error:
        hint = {
            errno.EADDRINUSE: "address in use: choose another one, or port 0 for a free one",
            errno.EADDRNOTAVAIL: "not an address of this machine: bind * for every interface",
            errno.ENODEV: "not an address of this machine: bind * for every interface",
            errno.EACCES: "not permitted: choose a port above 1023 or a writable folder",
            errno.ENOENT: "the folder does not exist",
            errno.ENAMETOOLONG: "the path is too long for a socket",
        }.get(error.errno or 0, error.strerror)
        raise TransportError(f"cannot bind {endpoint}: {hint}") from error
    address = sock.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(address, bytes)
    return address.rstrip(b"\0").decode()


def release_name(sock: ZmqSocket, address: str) -> None:
    """Lets go of an inproc name at once; ZMQ does so by and by, as it closes sockets."""
    if Endpoint.parse(address).transport == "inproc":
        with contextlib.suppress(zmq.ZMQError):  # it was not bound
            sock.unbind(address)


def connect_socket(sock: ZmqSocket, endpoint: str) -> str:
    """Begins to connect (ZMQ goes on trying) and returns the address connected to.

    Raises:
        TransportError: the address cannot be used at all.
    """
    parsed = Endpoint.parse(endpoint)
    address = parsed.to_connect()
    sock.setsockopt(zmq.IPV6, int(parsed.needs_ipv6))
    try:
        sock.connect(address)
    except zmq.ZMQError as error:
        raise TransportError(f"cannot connect to {endpoint}: {error.strerror}") from error
    return address


def _is_served(path: str) -> bool:
    if path == "*" or path.startswith("@") or not os.path.exists(path):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
