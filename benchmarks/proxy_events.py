"""A fleet whose engines announce blocks all the time, as engines at work do."""

import itertools
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.process import Part
from benchmarks.workload import batches, generate
from kvevents.transport import ZmqPublisher

WORKERS = 4
BLOCK_SIZE = 16
HELD_BLOCKS = 100_000
"""Of the fleet whose prompts are asked for; they stay."""
PASSING_BLOCKS = 40_000
"""Of the sessions that come and go."""
MESSAGES_PER_S = 80
MESSAGE_BLOCKS = 32


class BusyFleet:
    """Publishers with replay sockets, one for each worker, in a process of their own.

    Attributes:
        kv_events: of each worker what its engine says of its sockets.
    """

    def __init__(self) -> None:
        self._part = Part(_publish)
        self.kv_events: list[dict[str, Any]] = self._part.ask("begin")

    def close(self) -> None:
        self._part.close()


def _publish(connection: "Connection[Any, Any]") -> None:
    connection.recv()
    held = list(batches(generate(HELD_BLOCKS, BLOCK_SIZE, WORKERS)))
    passing = list(_sessions())
    publishers = [ZmqPublisher("tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*") for _ in range(WORKERS)]
    try:
        for worker, data in held:
            publishers[worker].publish(data)
        common = {"publisher": "zmq", "block_size": BLOCK_SIZE, "dp_size": 1}
        connection.send(
            [common | {"endpoint": one.endpoint, "replay_endpoint": one.replay_endpoint} for one in publishers]
        )
        due = time.monotonic()
        for worker, data in itertools.cycle(passing):
            publishers[worker].publish(data)
            due += 1 / MESSAGES_PER_S
            if connection.poll(max(0.0, due - time.monotonic())):
                connection.recv()
    finally:
        for publisher in publishers:
            publisher.close()


def _sessions() -> Iterator[tuple[int, bytes]]:
    """What is stored, and then all of it removed, so that it can begin again."""
    fleet = generate(PASSING_BLOCKS, BLOCK_SIZE, WORKERS, seed=2)
    yield from batches(fleet, MESSAGE_BLOCKS, MESSAGE_BLOCKS)
    for worker in range(WORKERS):
        for data in fleet.removals(worker, MESSAGE_BLOCKS):
            yield worker, data
