"""Plain pyzmq peers for the transport tests: they know the protocol, and nothing of kvevents."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import zmq

DEADLINE_S = 20.0
END = b"\xff" * 8


def number(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big")


def until(condition: Callable[[], Any], what: str = "condition") -> Any:
    """Polls until `condition` gives something true, and returns it."""
    deadline = time.monotonic() + DEADLINE_S
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S:g} s"
        time.sleep(0.002)
    return result


@contextlib.contextmanager
def sockets() -> Iterator[Callable[..., "zmq.Socket[bytes]"]]:
    """Makes sockets of one context that all go away at the end."""
    with zmq.Context() as context, contextlib.ExitStack() as opened:

        def make(kind: int, **options: Any) -> "zmq.Socket[bytes]":
            socket = opened.enter_context(context.socket(kind))
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, int(DEADLINE_S * 1000))
            for name, value in options.items():
                socket.set(getattr(zmq, name.upper()), value)
            return socket

        yield make


def replay(dealer: "zmq.Socket[bytes]", start: int) -> list[list[bytes]]:
    """All frames that answer a replay request, end mark included."""
    dealer.send_multipart([b"", number(start)])
    answers = []
    while True:
        answers.append(dealer.recv_multipart())
        if answers[-1][-2] == END:
            return answers


def first_live(sub: "zmq.Socket[bytes]", publish: Callable[[], Any]) -> list[bytes]:
    """Publishes until the first message comes through: a subscription takes a moment to arrive."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        publish()
        if sub.poll(20):
            return sub.recv_multipart()
    raise AssertionError("nothing came through")


@contextlib.contextmanager
def out_of_breath(publisher: Any) -> Iterator[None]:
    """The publisher's thread that sends stands still, as it would on a machine that is out of breath."""
    gate, send = threading.Event(), publisher._send

    def held_up(sequence: int, payload: bytes) -> None:
        gate.wait()
        send(sequence, payload)

    publisher._send = held_up
    try:
        yield
    finally:
        del publisher._send
        gate.set()


class PlainEngine:
    """A publisher by the book: PUB and ROUTER with a replay buffer, which tests may falsify.

    Attributes:
        buffer: what a replay repeats, by sequence number.
        answers: False: requests get no answer.
        with_topic: whether replies carry the topic, as newer engines do.
        requests: starts asked for, as they came.
    """

    def __init__(self, *, endpoint: str = "tcp://127.0.0.1:*", replay_endpoint: str = "tcp://127.0.0.1:*") -> None:
        self.topic = b"kv"
        self.buffer: dict[int, bytes] = {}
        self.answers = True
        self.with_topic = True
        self.requests: list[int] = []
        self._next = 0
        self._context = zmq.Context()
        self._pub = self._bound(zmq.PUB, endpoint)
        self._router = self._bound(zmq.ROUTER, replay_endpoint)
        self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _bound(self, kind: int, endpoint: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        # A port that was just left may linger for a moment.
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                socket.bind(endpoint)
            except zmq.ZMQError:
                assert time.monotonic() < deadline, f"{endpoint} stays in use"
                time.sleep(0.01)
            else:
                return socket

    def publish(self, payload: bytes, *, sequence: int | None = None, live: bool = True) -> int:
        """Numbers and buffers a batch, and sends it unless it is to be lost."""
        self._next = sequence if sequence is not None else self._next
        self.buffer[self._next] = payload
        if live:
            self.send(self.topic, number(self._next), payload)
        self._next += 1
        return self._next - 1

    def send(self, *frames: bytes) -> None:
        """Sends any message on the live socket."""
        self._pub.send_multipart(frames)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            if not self._router.poll(5):
                continue
            identity, empty, start = self._router.recv_multipart()
            assert not empty
            self.requests.append(int.from_bytes(start, "big"))
            if not self.answers:
                continue
            topic = [self.topic] if self.with_topic else []
            for sequence, payload in sorted(self.buffer.items()):
                if sequence >= self.requests[-1]:
                    self._router.send_multipart([identity, b"", *topic, number(sequence), payload])
            self._router.send_multipart([identity, b"", *([b""] if self.with_topic else []), END, b""])

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._pub.close()
        self._router.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
