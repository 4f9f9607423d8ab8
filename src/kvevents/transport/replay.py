"""Asks a publisher's replay socket to repeat batches."""

import contextlib
from collections.abc import Callable

import zmq

from kvevents.errors import WireError
from kvevents.transport.frames import Message, read_reply, sequence_frame
from kvevents.transport.poll_loop import PollLoop
from kvevents.transport.snapshot import is_snapshot_answer
from kvevents.transport.sockets import ZmqSocket, connect_socket

_REPLIES_A_TURN = 1_024


class ReplayClient:
    """One replay request at a time, over a DEALER socket.

    Replies carry no number of their request, so a socket that still owes some is given up for a new one.

    Args:
        endpoint: the publisher's ROUTER.
        receive_hwm: replies that may wait here.
        loop: watches the socket; its thread makes every call here.
        open_socket: makes a socket with the subscriber's settings.
        on_reply: called with every reply, and with None for the end mark.
        on_snapshot: called with head and chunk of every answer to a request for a snapshot.
        on_malformed: called for a message that is neither.
        guard: wraps what the loop calls, so that a failure ends this source only.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        receive_hwm: int,
        loop: PollLoop,
        open_socket: Callable[[str, int], ZmqSocket],
        on_reply: Callable[[Message | None], None],
        on_snapshot: Callable[[bytes, bytes], None],
        on_malformed: Callable[[], None],
        guard: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        self._endpoint = endpoint
        self._receive_hwm = receive_hwm
        self._loop = loop
        self._open_socket = open_socket
        self._on_reply = on_reply
        self._on_snapshot = on_snapshot
        self._on_malformed = on_malformed
        self._guard = guard
        self._dealer: ZmqSocket | None = None
        self._is_free = False

    def ask(self, start: int) -> None:
        """Asks for everything from `start` on; replies to an earlier request will not come any more.

        Raises:
            TransportError: the endpoint cannot be used, or there are too many sockets.
        """
        self._send(sequence_frame(start))

    def ask_snapshot(self, request: bytes) -> None:
        """Asks for a snapshot, or a chunk of one; the same holds.

        Raises:
            TransportError: the endpoint cannot be used, or there are too many sockets.
        """
        self._send(request)

    def _send(self, request: bytes) -> None:
        if self._dealer is None or not self._is_free:
            self.close()
            self._dealer = dealer = self._open_socket(self._endpoint, zmq.DEALER)
            # The publisher's ROUTER drops what we do not take in time: room for the longest answer to be expected.
            dealer.setsockopt(zmq.RCVHWM, self._receive_hwm)
            connect_socket(dealer, self._endpoint)
            self._loop.register(dealer, self._guard(self._read))
        self._is_free = False
        with contextlib.suppress(zmq.Again):  # refused already, for its keys: silence, to whoever asks
            self._dealer.send_multipart((b"", request), zmq.NOBLOCK)

    def close(self) -> None:
        """Closes the socket; `ask` opens a new one."""
        if self._dealer is not None:
            self._loop.unregister(self._dealer)
            self._dealer.close(0)
            self._dealer = None

    def _read(self) -> None:
        dealer = self._dealer
        for _ in range(_REPLIES_A_TURN):
            if dealer is None or dealer is not self._dealer:
                break  # what came before made us ask through another one
            try:
                frames = dealer.recv_multipart(zmq.NOBLOCK)
                if is_snapshot_answer(frames):
                    self._is_free = True
                    self._on_snapshot(frames[2], frames[3])
                    continue
                reply = read_reply(frames)
            except zmq.Again:
                break
            except WireError:
                self._on_malformed()
                continue
            self._is_free = reply is None
            self._on_reply(reply)
