"""What does `publish` cost the engine's thread while nobody takes anything?

    python -m benchmarks.publish [--batches 200000] [--kilobytes 4]

A publisher with a replay socket and one consumer that is connected, subscribed and then stopped (it reads nothing, so
that its queues fill and stay full). One thread publishes encoded batches as fast as it can, then at a pace of 1,000 a
second as an engine does. Each call is timed; reported are the percentiles, what was dropped, and the memory that the
process has grown by against the bound that its settings give. The floor is the same call on a queue alone.
"""

import argparse
import queue
import resource
import time
from collections.abc import Callable
from typing import Any

import zmq

from benchmarks.results import save
from kvevents.transport import ZmqPublisher

HWM = 1_000
BUFFER = 1_000
QUEUE = 1_000
MESSAGE_BYTES = 1_024
"""What Python and ZMQ add to a message's payload."""
PROCESS_BYTES = 8 << 20
"""The sockets' own buffers, and what an allocator keeps at hand."""
ENDPOINT = "tcp://127.0.0.1:*"


def percentiles(call: Callable[[], object], times: int, pause_s: float = 0.0) -> dict[str, float]:
    """Microseconds of a call: p50, p99, p99.9 and the longest."""
    took = []
    for _ in range(times):
        start = time.perf_counter_ns()
        call()
        took.append(time.perf_counter_ns() - start)
        if pause_s:
            time.sleep(pause_s)
    took.sort()
    places = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}
    found = {name: took[min(times - 1, int(times * share))] / 1000 for name, share in places.items()}
    return found | {"max_us": took[-1] / 1000}


def measure(batches: int, size: int) -> dict[str, Any]:
    payload = bytes(size - 1) + b"\0"
    floor: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    results: dict[str, Any] = {"floor": percentiles(lambda: floor.put(payload), batches)}
    with (
        zmq.Context() as context,
        context.socket(zmq.SUB) as stopped,
        ZmqPublisher(
            ENDPOINT, replay_endpoint=ENDPOINT, buffer_steps=BUFFER, hwm=HWM, max_queue_size=QUEUE, linger_s=0.0
        ) as publisher,
    ):
        stopped.setsockopt(zmq.RCVHWM, 1)
        stopped.setsockopt(zmq.RCVBUF, 1 << 16)
        stopped.setsockopt(zmq.SUBSCRIBE, b"")
        stopped.connect(publisher.endpoint)
        while not stopped.poll(1):
            publisher.publish(payload)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Bytes that differ from call to call, so that each takes memory of its own as long as it is kept.
        count = iter(range(2 * batches + 1))
        fresh = [bytes(payload) for _ in range(1)]

        def publish() -> int:
            return publisher.publish(fresh[0][:-4] + next(count).to_bytes(4, "big"))

        results["stopped consumer, as fast as possible"] = percentiles(publish, batches)
        results["stopped consumer, 1,000 a second"] = percentiles(publish, min(batches, 3_000), 0.001)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        results["memory"] = {
            "grown_bytes": grown,
            "bound_bytes": (BUFFER + QUEUE + HWM) * (size + MESSAGE_BYTES) + PROCESS_BYTES,
            "published_bytes": (batches + min(batches, 3_000)) * size,
            "dropped_at_the_queue": publisher.stats().dropped,
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=200_000)
    parser.add_argument("--kilobytes", type=int, default=4)
    options = parser.parse_args()
    size = options.kilobytes * 1024
    rows = [
        {"case": name, "payload_bytes": size, **{key: round(value, 1) for key, value in figures.items()}}
        for name, figures in measure(options.batches, size).items()
    ]
    save("publish", __doc__ or "", rows)


if __name__ == "__main__":
    main()
