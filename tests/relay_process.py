"""A relay as a process of its own, and a consumer that knows nothing of kvevents, for integration tests."""

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
import zmq

from kvevents.events import AllBlocksCleared, BlockStored
from kvevents.wire import decode_batch
from zmq_peers import END, number

COMMAND = (sys.executable, "-m", "kvevents", "relay")


@dataclass
class RelayProcess:
    """A running relay.

    Attributes:
        process: the process.
        ready: the line that it printed when it was.
        notes: what it wrote to stderr so far.
    """

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """What discovers its only worker."""
        return str(self.ready["workers"][0]["url"])

    @property
    def kv_events(self) -> dict[str, Any]:
        """Where its only worker is published."""
        events: dict[str, Any] = self.ready["workers"][0]["kv_events"]
        return events

    def end(self, number: signal.Signals) -> int:
        """Signals it and waits; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)


@contextlib.contextmanager
def running_relay(*arguments: str | Path) -> Iterator[RelayProcess]:
    """Starts a relay, waits until it listens, and makes sure that it is gone afterwards."""
    command = [*COMMAND, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        notes: list[str] = []
        reader = threading.Thread(target=notes.extend, args=[process.stderr], daemon=True)
        reader.start()
        try:
            line = process.stdout.readline()
            assert line, f"the relay ended before it was ready: {notes}"
            yield RelayProcess(process, msgspec.json.decode(line), notes)
        finally:
            process.kill()
            process.wait(30)
            reader.join(30)


class PlainConsumer:
    """Follows one stream by the reference protocol: applies what is live, asks for what is missing, and nothing more.

    Attributes:
        held: blocks that the events say are held.
        sequence: the last number applied.
        asked: replay requests.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, replay_endpoint: str) -> None:
        self.held: set[int] = set()
        self.sequence = -1
        self.asked = 0
        self._sub = context.socket(zmq.SUB)
        self._sub.subscribe(b"")
        self._sub.connect(endpoint)
        self._dealer = context.socket(zmq.DEALER)
        self._dealer.connect(replay_endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sub.close(0)
        self._dealer.close(0)

    def replay(self, start: int) -> None:
        """Asks for the batches from a number on, and applies them."""
        self.asked += 1
        self._dealer.send_multipart([b"", number(start)])
        while True:
            assert self._dealer.poll(20_000), "no reply to a replay request"
            *_, sequence, payload = self._dealer.recv_multipart()
            if sequence == END:
                return
            self._apply(int.from_bytes(sequence, "big"), payload)

    def read(self, wait_ms: int = 0) -> bool:
        """Applies one live batch, if there is one."""
        if not self._sub.poll(wait_ms):
            return False
        _, frame, payload = self._sub.recv_multipart()
        sequence = int.from_bytes(frame, "big")
        if sequence > self.sequence + 1:
            self.replay(self.sequence + 1)
        self._apply(sequence, payload)
        return True

    def _apply(self, sequence: int, payload: bytes) -> None:
        if sequence <= self.sequence:
            return
        self.sequence = sequence
        for event in decode_batch(payload).events:
            if isinstance(event, AllBlocksCleared):
                self.held.clear()
            elif isinstance(event, BlockStored):
                self.held |= {block for block in event.block_hashes if isinstance(block, int)}
            else:
                self.held -= {block for block in event.block_hashes if isinstance(block, int)}
