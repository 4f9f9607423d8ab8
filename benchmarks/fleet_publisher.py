"""One process that publishes what a whole fleet has to say, as fast as it can, on one socket a worker."""

import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import zmq

from benchmarks.process import Part

Messages: TypeAlias = Sequence[tuple[int, bytes]]
"""(worker, payload), in the order in which they are sent."""


class FleetPublisher:
    """XPUB sockets, which know their subscribers, with room for everything: nothing is dropped."""

    def __init__(self, workers: int, messages: Messages) -> None:
        self._part = Part(_publish, workers, messages)

    def open(self) -> list[str]:
        """New sockets for new subscribers; their endpoints by worker."""
        endpoints: list[str] = self._part.ask("open")
        return endpoints

    def send(self, subscribers: int = 1) -> float:
        """Once every socket has its subscribers, send all messages, numbered from 0; when that began, monotonic."""
        started: float = self._part.ask(subscribers)
        return started

    def close(self) -> None:
        self._part.close()


def _publish(connection: "Connection[Any, Any]", workers: int, messages: Messages) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets: list[zmq.Socket[bytes]] = []
    numbered = []
    next_numbers = [0] * workers
    for worker, payload in messages:
        numbered.append((worker, (b"", next_numbers[worker].to_bytes(8, "big"), payload)))
        next_numbers[worker] += 1
    while True:
        message = connection.recv()
        if message == "open":
            for socket in sockets:
                socket.close(0)
            sockets = [context.socket(zmq.XPUB) for _ in range(workers)]
            for socket in sockets:
                socket.sndhwm = 0
                socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # one message for each subscriber
                socket.bind("tcp://127.0.0.1:*")
            connection.send([address(socket) for socket in sockets])
        else:
            for socket in sockets * message:
                socket.recv()
            started = time.monotonic()
            connection.send(started)
            for worker, frames in numbered:
                sockets[worker].send_multipart(frames)


def address(socket: "zmq.Socket[bytes]") -> str:
    """Where a socket is bound."""
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()
