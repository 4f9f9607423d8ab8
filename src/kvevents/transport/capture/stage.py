"""The two sockets of one rank, as an engine has them, for batches that bring their sequence numbers along."""

from collections import deque

import zmq

from kvevents.errors import TransportError
from kvevents.transport.endpoints import Endpoint, rank_endpoint
from kvevents.transport.frames import END_MARK, read_request, sequence_frame
from kvevents.transport.security import PublisherKeys
from kvevents.transport.served import open_served
from kvevents.transport.sockets import ZmqContext, ZmqSocket, bind_socket

_LINGER_MS = 1_000
_ATTEMPTS = 100
_WAITED_FOR = 1_000
_BEFORE_LOSS = 100_000
"""Messages queued for one subscriber, before it is waited for, or loses some; the latter as engines have it."""


class Stage:
    """A publisher that publishes what it is told under the number it is told, and repeats it on request.

    One thread uses it.

    Args:
        live: the PUB side, bound.
        router: the replay side, bound.
        buffer_bytes: payloads that can be repeated.

    Attributes:
        joined: subscriptions so far.
        last: the number published last; None before the first.
    """

    def __init__(self, live: ZmqSocket, router: ZmqSocket, buffer_bytes: int) -> None:
        self.live = live
        self.router = router
        self.joined = 0
        self.last: int | None = None
        self._room = buffer_bytes
        self._buffer: deque[tuple[int, bytes, bytes]] = deque()

    def send(self, sequence: int, topic: bytes, payload: bytes) -> bool:
        """Publishes a batch; False if a subscriber has no room for it and is waited for."""
        try:
            self.live.send_multipart((topic, sequence_frame(sequence), payload), zmq.NOBLOCK)
        except zmq.Again:
            return False
        self.last = sequence
        self._buffer.append((sequence, topic, payload))
        self._room -= len(payload)
        while self._room < 0 and len(self._buffer) > 1:
            self._room += len(self._buffer.popleft()[2])
        return True

    def forget(self) -> None:
        """Repeats nothing of what was published so far, as an engine that has started anew."""
        self._room += sum(len(payload) for _, _, payload in self._buffer)
        self._buffer.clear()

    def serve(self) -> None:
        """Takes note of subscriptions and answers replay requests, as many as there are."""
        try:
            while True:
                self.joined += self.live.recv(zmq.NOBLOCK)[:1] == b"\x01"
        except zmq.Again:
            pass
        try:
            while True:
                self._answer(self.router.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            pass

    def close(self) -> None:
        """Closes both sockets."""
        self.live.close(_LINGER_MS)
        self.router.close(_LINGER_MS)

    def _answer(self, frames: list[bytes]) -> None:
        start = read_request(frames)
        if start is None:
            return
        for sequence, topic, payload in self._buffer:
            if sequence >= start:
                self.router.send_multipart((frames[0], b"", topic, sequence_frame(sequence), payload))
        self.router.send_multipart((frames[0], b"", *END_MARK))


def open_stages(
    context: ZmqContext,
    endpoint: str,
    replay_endpoint: str,
    ranks: int,
    *,
    buffer_bytes: int,
    waits: bool,
    keys: PublisherKeys | None = None,
) -> tuple[list[Stage], str, str]:
    """Binds the sockets of all ranks of a worker side by side, as engines do.

    Args:
        context: of the sockets.
        endpoint: live socket of rank 0. With port 0 or `*` a base port is found that is free for all ranks.
        replay_endpoint: the same of the replay socket.
        ranks: how many.
        buffer_bytes: payloads that each can repeat.
        waits: a subscriber without room is waited for; otherwise what it has no room for is lost to it.
        keys: who may read; the context has a `Doorkeeper` then. None: everybody.

    Returns:
        The stages, and both endpoints of rank 0 with their real ports.

    Raises:
        TransportError: an address cannot be bound.
    """
    hwm = _WAITED_FOR if waits else _BEFORE_LOSS
    live, live_at = _bind_ranks(context, endpoint, ranks, zmq.XPUB, hwm=hwm, keys=keys)
    try:
        routers, replay_at = _bind_ranks(context, replay_endpoint, ranks, zmq.ROUTER, hwm=0, keys=keys)
    except BaseException:
        _close(live)
        raise
    for socket in live:
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        socket.setsockopt(zmq.XPUB_NODROP, int(waits))
    stages = [Stage(sub, router, buffer_bytes) for sub, router in zip(live, routers, strict=True)]
    return stages, live_at, replay_at


def _bind_ranks(
    context: ZmqContext, endpoint: str, ranks: int, kind: int, *, hwm: int, keys: PublisherKeys | None
) -> tuple[list[ZmqSocket], str]:
    parsed = Endpoint.parse(endpoint)
    attempts = _ATTEMPTS if parsed.transport == "tcp" and not parsed.port else 1
    for attempt in range(attempts):
        sockets: list[ZmqSocket] = []
        try:
            base = endpoint
            for rank in range(ranks):
                socket = open_served(kind, endpoint, context, hwm=hwm, keys=keys)
                sockets.append(socket)
                bound = bind_socket(socket, rank_endpoint(base, rank))
                if rank == 0:
                    base = bound
        except TransportError:
            _close(sockets)
            if attempt == attempts - 1:
                raise
        else:
            return sockets, base
    raise AssertionError("the last attempt raises")


def _close(sockets: list[ZmqSocket]) -> None:
    for socket in sockets:
        socket.close(0)
