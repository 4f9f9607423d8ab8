"""A replay socket: repeats batches and hands out snapshots, in a thread of its own."""

import logging
import threading
from collections.abc import Iterable
from typing import Protocol

import msgspec
import zmq

from kvevents.transport.frames import END_MARK, read_request, sequence_frame
from kvevents.transport.security import PublisherKeys
from kvevents.transport.served import open_served
from kvevents.transport.snapshot import SNAPSHOT_MARK
from kvevents.transport.snapshot_server import SnapshotServer
from kvevents.transport.sockets import ZmqContext, bind_socket, release_name
from kvevents.transport.wakeup import Wakeup

_log = logging.getLogger(__name__)


class Repeatable(Protocol):
    """What can be repeated; called by the server's thread."""

    def since(self, start: int, /) -> Iterable[tuple[int, bytes]]:
        """Number and bytes of every batch from `start` on, ascending."""


class ReplayServerStats(msgspec.Struct, frozen=True):
    """What a server did so far.

    Attributes:
        requests: replay requests answered.
        replayed: batches repeated.
        malformed: messages that ask for nothing; they get no answer.
        failed: requests that could not be answered for a reason of ours; the first is logged.
    """

    requests: int
    replayed: int
    malformed: int
    failed: int = 0


class ReplayServer:
    """Serves a ROUTER socket, so that neither a long replay nor a snapshot holds up what is live.

    Args:
        endpoint: the address to bind.
        batches: what is repeated.
        topic: what goes with each batch.
        snapshots: answers requests for snapshots; None: they get the end mark alone, as from a publisher that knows
            nothing of them. Whoever made it closes it, after this one.
        send_hwm: messages queued for one slow consumer; what is above is dropped.
        context: for every transport but inproc; whoever made it ends it.
        linger_ms: how long consumers have, after `close`, to take what was sent.
        keys: who may ask; the context has a `Doorkeeper` then. None: everybody.

    Attributes:
        endpoint: the address in use, with the real port.

    Raises:
        TransportError: an address that cannot be bound.
    """

    def __init__(
        self,
        endpoint: str,
        batches: Repeatable,
        *,
        topic: bytes,
        snapshots: SnapshotServer | None,
        send_hwm: int,
        context: ZmqContext,
        linger_ms: int,
        keys: PublisherKeys | None = None,
    ) -> None:
        self._batches = batches
        self._topic = topic
        self._snapshots = snapshots
        self._linger_ms = linger_ms
        self._closing = False
        self._requests = self._replayed = self._malformed = self._failed = 0
        self._router = open_served(zmq.ROUTER, endpoint, context, hwm=send_hwm, keys=keys)
        try:
            self.endpoint = bind_socket(self._router, endpoint)
        except BaseException:
            self._router.close(0)
            raise
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._run, name=f"kvevents-replay-{self.endpoint}", daemon=True)
        self._thread.start()

    def stats(self) -> ReplayServerStats:
        """Counters; any thread may ask."""
        return ReplayServerStats(self._requests, self._replayed, self._malformed, self._failed)

    def close(self) -> None:
        """Answers nothing more and closes the socket; idempotent."""
        self._closing = True
        self._wakeup.set()
        self._thread.join()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wakeup, zmq.POLLIN)
        poller.register(self._router, zmq.POLLIN)
        try:
            while not self._closing:
                poller.poll()
                while not self._closing and self._serve():
                    pass
        finally:
            release_name(self._router, self.endpoint)
            self._router.close(self._linger_ms)
            self._wakeup.close()

    def _serve(self) -> bool:
        """Answers one message; False if there is none."""
        try:
            frames = self._router.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        try:
            self._answer(frames)
        except Exception:
            self._failed += 1
            if self._failed == 1:
                _log.exception("%s: a request was not answered; later failures are only counted", self.endpoint)
        return True

    def _answer(self, frames: list[bytes]) -> None:
        is_request = len(frames) == 3 and not frames[1]
        if self._snapshots is not None and is_request and (answer := self._snapshots.answer(frames[2])):
            self._router.send_multipart((frames[0], b"", SNAPSHOT_MARK, *answer))
            return
        start = read_request(frames)
        if start is None:
            self._malformed += 1
            return
        self._requests += 1
        self._repeat(frames[0], start)

    def _repeat(self, peer: bytes, start: int) -> None:
        send = self._router.send
        for sequence, payload in self._batches.since(start):
            send(peer, zmq.SNDMORE)
            send(b"", zmq.SNDMORE)
            send(self._topic, zmq.SNDMORE)
            send(sequence_frame(sequence), zmq.SNDMORE)
            send(payload)
            self._replayed += 1
            if self._closing:
                return
        self._router.send_multipart((peer, b"", *END_MARK))
