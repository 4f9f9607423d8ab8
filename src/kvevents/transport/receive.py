"""Reads the live socket: many messages at once, at a cost per message that matters when each brings one event."""

from typing import NamedTuple

import zmq

from kvevents.transport.frames import END_SEQUENCE, SEQUENCE_BYTES
from kvevents.transport.sockets import ZmqSocket

_NOW = int(zmq.NOBLOCK)


class Received(NamedTuple):
    """What was waiting at a live socket.

    Attributes:
        batches: (sequence, payload) of each message, in order.
        malformed: messages that are not `[topic, sequence, payload]`.
        topic: what the last message was published under; None if there was none.
    """

    batches: list[tuple[int, bytes]]
    malformed: int
    topic: bytes | None = None


def receive(socket: ZmqSocket, limit: int) -> Received:
    """Takes at most `limit` messages that are there already.

    Asking after each frame whether more follow would cost more than all the rest. So three frames are read and the last
    one says whether it was the last. A message of fewer frames may thereby take the one after it with it, which is a
    gap in the sequence like any other.
    """
    batches = []
    malformed = 0
    topic = None
    receive_frame = socket.recv
    try:
        for _ in range(limit):
            topic = receive_frame(_NOW)
            sequence = receive_frame(_NOW)
            if len(sequence) != SEQUENCE_BYTES:
                malformed += 1
                _skip_rest(socket)
                continue
            payload = receive_frame(_NOW, False)  # no copy yet
            if payload.more or sequence == END_SEQUENCE:
                malformed += 1
                _skip_rest(socket)
                continue
            batches.append((int.from_bytes(sequence, "big"), payload.bytes))
    except zmq.Again:
        pass
    return Received(batches, malformed, topic)


def _skip_rest(socket: ZmqSocket) -> None:
    """Past the end of the message whose frame was read last."""
    while socket.getsockopt(zmq.RCVMORE):
        socket.recv(_NOW)
