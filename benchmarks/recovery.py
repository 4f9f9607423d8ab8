"""How long does a late consumer take to `live`: by a snapshot, or by a replay of the same history?

    python -m benchmarks.recovery [--blocks 1000000] [--rounds 3]

One publisher, in a process of its own, has stored a million blocks of 16 tokens, chain after chain, and by then evicted
half as many, which it stored again later; its history is as long as its replay buffer, so that the same publisher can
bring either. A new subscriber with a new index connects over loopback TCP; the clock runs from there to `live`. The
snapshot is taken when it is asked for (no other consumer has asked before); the same with one that is there already.
After each round the index's holdings are compared with what was published. Rounds alternate; medians.
"""

import argparse
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks.results import save
from kvevents.events import BlockRemoved, BlockStored, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport import DeliverySettings, Source, Subscriber, ZmqPublisher
from kvevents.wire import encode_batch

PAGE = 16
CHAIN = 64
ANY = "tcp://127.0.0.1:*"
PATIENT = DeliverySettings(replay_timeout_s=60.0, settle_s=60.0)


def history(blocks: int) -> Iterator[bytes]:
    """Batches that end with `blocks` held: every second chain is stored, evicted, and stored again."""
    for number in range(blocks // CHAIN):
        tokens = [(number * 7_919 + place) % 50_000 for place in range(CHAIN * PAGE)]
        hashes = [number * CHAIN + place + 1 for place in range(CHAIN)]
        stored = BlockStored(hashes, None, tokens, PAGE, medium="GPU")
        yield encode_batch(KVEventBatch(0.0, [stored], attn_dp_rank=0))
        if number % 2:
            yield encode_batch(KVEventBatch(0.0, [BlockRemoved(hashes, medium="GPU")], attn_dp_rank=0))
            yield encode_batch(KVEventBatch(0.0, [stored], attn_dp_rank=0))


def publish(blocks: int) -> None:
    """The publisher's process: says where it is once all is published, and ends with its input."""
    with ZmqPublisher(
        ANY, replay_endpoint=ANY, buffer_steps=10 * blocks // CHAIN, max_queue_size=10 * blocks, snapshot="mirror"
    ) as publisher:
        size = 0
        for payload in history(blocks):
            publisher.publish(payload)
            size += len(payload)
        while publisher.stats().queued:
            time.sleep(0.01)
        ready = {"endpoint": publisher.endpoint, "replay": publisher.replay_endpoint, "history_bytes": size}
        print(msgspec.json.encode(ready).decode(), flush=True)
        sys.stdin.read()


def recover(where: dict[str, Any], blocks: int, *, snapshot: bool) -> float:
    """Seconds to `live`."""
    index = PrefixIndex(PAGE)
    source = Source("w", where["endpoint"], replay_endpoint=where["replay"], dp_rank=0, snapshot=snapshot)
    gc.collect()
    start = time.perf_counter()
    with Subscriber([source], index, settings=PATIENT) as subscriber:
        assert subscriber.wait_live(300)
        took = time.perf_counter() - start
        counters = subscriber.state("w", 0).counters
        assert counters.snapshots == snapshot
    assert index.holdings("w")[0]["GPU"] == set(range(1, blocks // CHAIN * CHAIN + 1))
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--publish", action="store_true", help="be the publisher's process")
    options = parser.parse_args()
    if options.publish:
        publish(options.blocks)
        return
    command = [sys.executable, "-m", "benchmarks.recovery", "--publish", "--blocks", str(options.blocks)]
    times: dict[str, list[float]] = {"snapshot taken on demand": [], "snapshot at hand": [], "replay": []}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        where = msgspec.json.decode(process.stdout.readline(), type=dict[str, Any])
        for _ in range(options.rounds):
            times["replay"].append(recover(where, options.blocks, snapshot=False))
            times["snapshot taken on demand"].append(recover(where, options.blocks, snapshot=True))
            times["snapshot at hand"].append(recover(where, options.blocks, snapshot=True))
            time.sleep(1.1)  # the snapshot is fresh no longer
        process.communicate(b"")
    rows = [
        {
            "by": by,
            "blocks": options.blocks,
            "history_mb": round(where["history_bytes"] / 1e6, 1),
            "to_live_s": round(statistics.median(took), 3),
            "worst_s": round(max(took), 3),
        }
        for by, took in times.items()
    ]
    save("recovery", __doc__ or "", rows)


if __name__ == "__main__":
    main()
