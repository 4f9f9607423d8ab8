"""Plain pyzmq peers for the transport tests: they know the protocol, and nothing of kvevents."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

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
