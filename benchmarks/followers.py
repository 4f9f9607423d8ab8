"""Those that follow a fleet's events in a process of their own and can be asked how much of a prompt a worker has."""

import contextlib
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

import zmq

from benchmarks.process import Part
from kvevents.index import PrefixIndex
from kvevents.transport import Source, Subscriber

_NOW = int(zmq.NOBLOCK)


class Follower(Protocol):
    """Workers are numbered; each publishes at an endpoint of its own."""

    def follow(self, endpoints: Sequence[str]) -> None:
        """Begin to follow these workers."""

    def depths(self, tokens: Sequence[int]) -> dict[int, int]:
        """Leading blocks of a prompt by worker, of those that have any."""

    def processor_seconds(self) -> float:
        """What its process has used so far."""

    def close(self) -> None: ...


class Ours:
    """`Subscriber` into `PrefixIndex`."""

    def __init__(self, block_size: int) -> None:
        self._part = Part(_follow, block_size)

    def follow(self, endpoints: Sequence[str]) -> None:
        self._part.ask(endpoints)

    def depths(self, tokens: Sequence[int]) -> dict[int, int]:
        answer: dict[int, int] = self._part.ask(tokens)
        return answer

    def faults(self) -> list[str]:
        """What the subscriber says of sources that are not live."""
        answer: list[str] = self._part.ask("faults")
        return answer

    def processor_seconds(self) -> float:
        return self._part.processor_seconds()

    def close(self) -> None:
        self._part.close()


def _follow(connection: "Connection[Any, Any]", block_size: int) -> None:
    index = PrefixIndex(block_size)
    endpoints = connection.recv()
    sources = [Source(str(worker), endpoint) for worker, endpoint in enumerate(endpoints)]
    with Subscriber(sources, index) as subscriber:
        connection.send(None)
        while True:
            message = connection.recv()
            if message == "faults":
                states = subscriber.states().items()
                connection.send([f"{key}: {state}" for key, state in states if state.state != "live"])
            else:
                connection.send({int(match.worker): match.total for match in index.match(message)})


class Floor:
    """Receives frames in Python and throws them away; it knows a prompt once it has all messages."""

    def __init__(self, messages: int) -> None:
        self._part = Part(_throw_away, messages)

    def follow(self, endpoints: Sequence[str]) -> None:
        self._part.ask(endpoints)

    def depths(self, _tokens: Sequence[int]) -> dict[int, int]:
        answer: dict[int, int] = self._part.ask(None)
        return answer

    def processor_seconds(self) -> float:
        return self._part.processor_seconds()

    def close(self) -> None:
        self._part.close()


def _throw_away(connection: "Connection[Any, Any]", messages: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    poller = zmq.Poller()
    endpoints = connection.recv()
    for endpoint in endpoints:
        socket = context.socket(zmq.SUB)
        socket.rcvhwm = 100_000
        socket.subscribe(b"")
        socket.connect(endpoint)
        poller.register(socket, zmq.POLLIN)
    connection.send(None)
    received = 0
    while received < messages:
        for ready, _ in poller.poll():
            assert isinstance(ready, zmq.Socket)
            with contextlib.suppress(zmq.Again):
                for _ in range(256):
                    ready.recv(_NOW)
                    ready.recv(_NOW)
                    ready.recv(_NOW)
                    received += 1
    connection.recv()
    connection.send(dict.fromkeys(range(len(endpoints)), 1))
    connection.recv()


def wait_for(follower: Follower, prompt: Sequence[int], workers: int, *, every_s: float, patience_s: float) -> float:
    """Ask until so many workers have a prompt; when they had, monotonic.

    Raises:
        RuntimeError: they never had.
    """
    deadline = time.monotonic() + patience_s
    while len(follower.depths(prompt)) < workers:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{type(follower).__name__}: the last block is not visible after {patience_s:g} s")
        time.sleep(every_s)
    return time.monotonic()
