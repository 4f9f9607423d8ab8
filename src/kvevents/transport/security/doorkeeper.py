"""Lets in those whose public key is listed: ZMQ's authentication (ZAP, RFC 27), asked at each handshake."""

import logging
import threading
from typing import Self

import zmq
from zmq.utils import z85

from kvevents.errors import ConfigError
from kvevents.transport.security.keys import PublisherKeys
from kvevents.transport.sockets import ZmqContext, no_socket
from kvevents.transport.wakeup import Wakeup

_log = logging.getLogger(__name__)

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_FRAMES = 9  # routing id, empty, version, request id, domain, address, identity, mechanism, key


class Doorkeeper:
    """Answers a context's handshakes, in a thread of its own.

    Make it before the sockets that it guards are bound, and close it after them: without one nobody comes in.

    Args:
        context: whose sockets it guards; one each.
        keys: who is let in.

    Raises:
        TransportError: the process has too many sockets open.
    """

    def __init__(self, context: ZmqContext, keys: PublisherKeys) -> None:
        self._keys = keys
        self._refused = 0
        self._closing = False
        try:
            self._socket = context.socket(zmq.ROUTER)
        except zmq.ZMQError as error:
            raise no_socket(_ADDRESS, error) from error
        self._socket.bind(_ADDRESS)
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._run, name="kvevents-doorkeeper", daemon=True)
        self._thread.start()

    @property
    def refused(self) -> int:
        """Handshakes of those whose key is not listed; any thread may ask."""
        return self._refused

    def close(self) -> None:
        """Lets nobody in any more; idempotent."""
        self._closing = True
        self._wakeup.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wakeup, zmq.POLLIN)
        poller.register(self._socket, zmq.POLLIN)
        try:
            while not self._closing:
                for ready, _ in poller.poll():
                    if ready is self._socket and not self._closing:
                        self._answer(self._socket.recv_multipart())
        finally:
            self._socket.close(0)
            self._wakeup.close()

    def _answer(self, frames: list[bytes]) -> None:
        if len(frames) < _FRAMES - 1:
            return
        peer, _, _, request, _, address, _, mechanism = frames[: _FRAMES - 1]
        key = frames[_FRAMES - 1] if len(frames) == _FRAMES else b""
        is_listed = mechanism == b"CURVE" and self._is_listed(key)
        if not is_listed:
            self._refuse(address)
        answer = (b"200", b"OK") if is_listed else (b"400", b"this key is not listed")
        self._socket.send_multipart((peer, b"", _VERSION, request, *answer, b"", b""))

    def _is_listed(self, key: bytes) -> bool:
        try:
            return z85.encode(key) in self._keys.allowed()
        except (ConfigError, ValueError) as error:  # the folder has gone: nobody is listed
            if not self._refused:
                _log.error("nobody can be let in: %s", error)
            return False

    def _refuse(self, address: bytes) -> None:
        self._refused += 1
        if self._refused == 1:
            _log.warning(
                "refused a consumer at %s: its key is not in %s; later ones are only counted",
                address.decode(errors="replace"),
                self._keys.clients_folder,
            )
