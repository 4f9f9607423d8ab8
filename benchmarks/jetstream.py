"""Does a fleet's log keep up, lose nothing over the broker's death, and how soon is a consumer back?

    python -m benchmarks.jetstream [--seconds 60] [--rate 100000] [--blocks 1000000]

Eight workers publish a seeded fleet's batches (page 16, 256 blocks a batch) over NATS JetStream with its log on disk,
again and again, each time after a clear. The broker is killed (`kill -9`) halfway and started again a second later.
One consumer keeps an index; in the end it has to equal one that was fed directly, and no worker may ever have been
degraded. Then a new consumer begins with nothing: once from the whole log, once from the snapshot. Workers, broker and
consumer are processes of their own on one machine; processor time of each is given.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.measure import percentile
from benchmarks.nats_broker import Broker
from benchmarks.peers import Unavailable
from benchmarks.process import Part
from benchmarks.results import save
from benchmarks.workload import batches, generate
from kvevents.events import AllBlocksCleared, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport import SourceState, State
from kvevents.transport.jetstream import JetStreamPublisher, JetStreamSettings, JetStreamSubscriber
from kvevents.wire import encode_batch

PAGE = 16
WAIT_S = 120.0


def settings_for(url: str) -> JetStreamSettings:
    return JetStreamSettings(servers=(url,), fleet="benchmark", max_bytes=2 << 30)


def lap(blocks: int) -> list[tuple[str, bytes, int]]:
    """One pass over the fleet: worker, payload, blocks; a clear of each worker first."""
    fleet = generate(blocks, block_size=PAGE)
    taken = list(batches(fleet))
    each = fleet.stored // max(1, len(taken))
    workers = sorted({worker for worker, _ in taken})
    clear = encode_batch(KVEventBatch(0.0, [AllBlocksCleared()], 0))
    return [(f"worker-{worker}", clear, 0) for worker in workers] + [
        (f"worker-{worker}", payload, each) for worker, payload in taken
    ]


def produce(connection: "Connection[Any, Any]", url: str, blocks: int, rate: int, seconds: float) -> None:
    """The workers' process: `prepare`, then `run`: whole laps at a steady rate, for at least so many seconds."""
    plan = lap(blocks)
    publishers = {worker: JetStreamPublisher(settings_for(url), worker) for worker in {worker for worker, *_ in plan}}
    while True:
        if connection.recv() == "prepare":
            connection.send("ready")
        else:
            connection.send(_run_laps(plan, publishers, rate, seconds))


def _run_laps(
    plan: list[tuple[str, bytes, int]], publishers: dict[str, JetStreamPublisher], rate: int, seconds: float
) -> dict[str, Any]:
    waits: list[float] = []
    sent = 0
    start = time.monotonic()
    for number, (worker, payload, stored) in enumerate(cycle(plan)):
        if number % len(plan) == 0 and time.monotonic() - start >= seconds:
            break
        before = time.perf_counter()
        publishers[worker].publish(payload)
        waits.append(time.perf_counter() - before)
        sent += stored
        ahead = sent / rate - (time.monotonic() - start)
        if ahead > 0:
            time.sleep(ahead)
    took = time.monotonic() - start
    for publisher in publishers.values():
        publisher.wait_ready(WAIT_S)
    stats = [publisher.stats() for publisher in publishers.values()]
    return {
        "seconds": round(took, 1),
        "blocks": sent,
        "blocks_per_s": round(sent / took),
        "batches": sum(each.published for each in stats),
        "megabytes": round(sum(each.published_bytes for each in stats) / 1e6, 1),
        "dropped": sum(each.dropped for each in stats),
        "resent": sum(each.resent for each in stats),
        "publish_p99_us": round(percentile(sorted(waits), 99) * 1e6, 1),
        "last": {worker: publisher.stats().last_sequence for worker, publisher in publishers.items()},
    }


def sustained(broker: Broker, options: argparse.Namespace, workers: Part) -> dict[str, Any]:
    """The long run, with the broker's death in its middle."""
    index = PrefixIndex(PAGE)
    wrong: list[str] = []

    def watch(worker: str, _rank: int | None, state: SourceState) -> None:
        if state.state is State.DEGRADED:
            wrong.append(f"{worker}: {state.reason}")

    def interrupt() -> None:
        time.sleep(options.seconds / 2)
        broker.kill()
        time.sleep(1.0)
        broker.start()

    before = time.process_time()
    with JetStreamSubscriber(settings_for(broker.url), index, snapshots=index, on_state=watch) as subscriber:
        workers.ask("prepare")
        used = workers.processor_seconds()
        interruption = threading.Thread(target=interrupt)
        interruption.start()
        row: dict[str, Any] = workers.ask("run")
        interruption.join()
        row["workers_cpu_s"] = round(workers.processor_seconds() - used, 2)
        last = row.pop("last")
        start = time.monotonic()
        while {worker: subscriber.state(worker).last_sequence for worker in last} != last:
            assert time.monotonic() - start < WAIT_S, (last, subscriber.states())
            time.sleep(0.01)
        row["consumer_behind_s"] = round(time.monotonic() - start, 2)
        row["consumer_cpu_s"] = round(time.process_time() - before, 2)
        assert subscriber.wait_live(WAIT_S, workers=len(last)), subscriber.states()
        missing = sum(state.counters.missing for state in subscriber.states().values())
        start = time.monotonic()
        subscriber.save_snapshot(WAIT_S)
        row["save_snapshot_s"] = round(time.monotonic() - start, 2)
    expected = PrefixIndex(PAGE)
    for worker, payload, _ in lap(options.blocks):
        expected.apply(worker, payload)
    equal = all(index.holdings(worker) == expected.holdings(worker) for worker in last)
    row |= {"broker_cpu_s": round(broker.processor_s, 2), "missing": missing, "degraded": len(wrong), "equal": equal}
    assert (missing, wrong, equal) == (0, [], True), row
    return {"figure": "sustained over a killed broker", **row}


def recover(broker: Broker, workers: int, *, from_snapshot: bool) -> dict[str, Any]:
    """A consumer that begins with nothing, until every worker is live."""
    index = PrefixIndex(PAGE)
    start, before = time.monotonic(), time.process_time()
    with JetStreamSubscriber(settings_for(broker.url), index, snapshots=index if from_snapshot else None) as subscriber:
        assert subscriber.wait_live(WAIT_S, workers=workers), subscriber.states()
        took, spent = time.monotonic() - start, time.process_time() - before
        applied = sum(state.counters.applied for state in subscriber.states().values())
        problem = subscriber.snapshot_problem
    assert problem is None, problem
    return {
        "figure": "new consumer, from the snapshot" if from_snapshot else "new consumer, from the log",
        "to_live_s": round(took, 2),
        "consumer_cpu_s": round(spent, 2),
        "batches_applied": applied,
        "blocks_held": index.stats().blocks,
    }


def one_lap(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Recovery of a log that holds each block once."""
    plan = lap(options.blocks)
    with Broker(folder) as broker:
        names = sorted({worker for worker, *_ in plan})
        publishers = {worker: JetStreamPublisher(settings_for(broker.url), worker) for worker in names}
        try:
            for worker, payload, _ in plan:
                publishers[worker].publish(payload)
            for publisher in publishers.values():
                publisher.wait_ready(WAIT_S)
            yield recover(broker, len(names), from_snapshot=False)
            index = PrefixIndex(PAGE)
            with JetStreamSubscriber(settings_for(broker.url), index, snapshots=index) as subscriber:
                assert subscriber.wait_live(WAIT_S, workers=len(names))
                subscriber.save_snapshot(WAIT_S)
            yield recover(broker, len(names), from_snapshot=True)
        finally:
            for publisher in publishers.values():
                publisher.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=100_000, help="stored blocks a second, over all workers")
    parser.add_argument("--blocks", type=int, default=1_000_000, help="of one lap")
    options = parser.parse_args()
    rows = []
    try:
        with tempfile.TemporaryDirectory() as folder, Broker(Path(folder)) as broker:
            workers = Part(produce, broker.url, options.blocks, options.rate, options.seconds)
            try:
                rows.append(sustained(broker, options, workers))
            finally:
                workers.close()
        with tempfile.TemporaryDirectory() as folder:
            rows += one_lap(options, Path(folder))
    except Unavailable as reason:
        print(f"jetstream: skipped: {reason}", file=sys.stderr)
        return 0
    save("jetstream", __doc__ or "", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
