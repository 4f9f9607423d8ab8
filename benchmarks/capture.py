"""What it costs to record, to rewrite under pseudonyms, to read a capture and to play it.

A fleet's stores (`workload.py`: 16 tokens a block, events of up to 96 blocks, batches of 256) go through each part.
`blocks_per_cpu_s` is blocks over the processor time of the process that does it, all threads. `record`: a publisher in
another process publishes at a steady rate over loopback, also one event a block in batches of 16, as vLLM does; the
recorder follows it with a `Subscriber`, rewrites, compresses and writes; every batch must be in the file. `replay`: the
player decompresses and publishes as fast as a subscriber in another process takes it, which keeps nothing.
"""

import argparse
import os
import shutil
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import zmq

from benchmarks.process import Part
from benchmarks.results import save
from benchmarks.workload import batches, generate
from kvevents._core.capture import Pseudonyms, Rewriter, measure
from kvevents.lint import StreamLinter
from kvevents.transport import CaptureReader, CaptureWriter, Recorder, Replayer, Source, State, ZmqPublisher
from kvevents.transport.capture import CaptureSource
from kvevents.wire import decode_batch

BLOCK_SIZE = 16
ROUNDS = 3
SOURCE = CaptureSource("w", 0, "kv", BLOCK_SIZE)


def payloads(blocks: int, event_blocks: int = 96, batch_blocks: int = 256) -> list[bytes]:
    """The batches of one worker."""
    fleet = generate(blocks, block_size=BLOCK_SIZE, workers=1)
    return [payload for _, payload in batches(fleet, event_blocks, batch_blocks)]


def best(run: Any, blocks: int) -> float:
    """Blocks a second of processor time, the best of some rounds: other work on the machine only ever slows it."""
    rates = []
    for _ in range(ROUNDS):
        start = time.process_time()
        run()
        rates.append(blocks / (time.process_time() - start))
    return max(rates)


def read(folder: Path) -> None:
    for batch in CaptureReader(folder).batches():
        measure(batch.payload)


def lint(folder: Path) -> None:
    linter = StreamLinter()
    for record in CaptureReader(folder).once():
        linter.feed(record)


def objects(folder: Path) -> None:
    for batch in CaptureReader(folder).batches():
        decode_batch(batch.payload)


def in_process(stream: list[bytes], blocks: int, folder: Path) -> list[dict[str, Any]]:
    names = Pseudonyms(os.urandom(32))
    size = sum(map(len, stream))

    def rewrite(**keep: bool) -> int:
        rewriter = Rewriter(names, **keep)
        return sum(len(rewriter.rewrite(payload).payload) for payload in stream)

    def write(**how: bool) -> int:
        shutil.rmtree(folder, ignore_errors=True)
        with CaptureWriter(folder, **how) as writer:  # type: ignore[arg-type]
            for sequence, payload in enumerate(stream):
                writer.write_batch(SOURCE, payload, sequence=sequence)
        return writer.stats().file_bytes

    rows: list[dict[str, Any]] = []
    for name, keep in (("all", {}), ("hashes kept", {"keep_hashes": True}), ("tokens kept", {"keep_tokens": True})):
        row = {"what": "rewrite", "how": name, "blocks_per_cpu_s": best(lambda keep=keep: rewrite(**keep), blocks)}
        rows.append(row | {"bytes_per_block": rewrite(**keep) / blocks, "bytes_per_block_before": size / blocks})
    for name, how in (("raw", {"raw": True}), ("pseudonymous", {})):
        rate = best(lambda how=how: write(**how), blocks)
        rows.append(
            {"what": "write", "how": name, "blocks_per_cpu_s": rate, "file_bytes_per_block": write(**how) / blocks}
        )
    reads = {"read through": read, "linted": lint, "as Python objects": objects}
    rows += [
        {"what": "read", "how": f"each batch {how}", "blocks_per_cpu_s": best(lambda run=run: run(folder), blocks)}
        for how, run in reads.items()
    ]
    return rows


def publish(connection: "Connection[Any, Any]", blocks: int, event_blocks: int, batch_blocks: int) -> None:
    """A process that publishes at a steady rate when it is told to."""
    stream = payloads(blocks, event_blocks, batch_blocks)
    per_batch = blocks / len(stream)
    with ZmqPublisher("tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*", topic="kv") as publisher:
        connection.recv()
        connection.send((publisher.endpoint, publisher.replay_endpoint))
        while True:
            rate, seconds = connection.recv()
            count, begin = int(rate * seconds / per_batch), time.monotonic()
            for number in range(count):
                ahead = begin + number * per_batch / rate - time.monotonic()
                if ahead > 0.001:
                    time.sleep(ahead)
                publisher.publish(stream[number % len(stream)])
            connection.send((count, count * per_batch, time.monotonic() - begin))


def record(connection: "Connection[Any, Any]", source: Source, folder: str) -> None:
    """A process that records."""
    with CaptureWriter(folder) as writer, Recorder([source], writer) as recorder:
        connection.recv()
        while recorder.states()["w", 0].state is not State.LIVE:
            time.sleep(0.01)
        connection.send(None)
        while True:
            wanted = connection.recv()
            end = time.monotonic() + 60
            while writer.stats().batches < wanted and time.monotonic() < end:
                time.sleep(0.01)
            state = recorder.states()["w", 0]
            connection.send((writer.stats().batches, state.state.value, state.counters.missing, state.counters.gaps))


def recording(rate: int, seconds: float, folder: Path, event_blocks: int, batch_blocks: int) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    with Part(publish, 200_000, event_blocks, batch_blocks) as publisher:
        endpoint, replay = publisher.ask("where")
        source = Source("w", endpoint, replay_endpoint=replay, dp_rank=0, topic="kv", block_size=BLOCK_SIZE)
        with Part(record, source, str(folder)) as recorder:
            recorder.ask("live?")
            before = recorder.processor_seconds()
            count, published, took = publisher.ask((rate, seconds))
            written, state, missing, gaps = recorder.ask(count)
            used = recorder.processor_seconds() - before
    in_file = sum(1 for _ in CaptureReader(folder).batches())
    return {
        "what": "record",
        "how": f"{rate:,} blocks/s for {seconds:g} s, {event_blocks} blocks an event, {batch_blocks} a batch",
        "blocks_per_s": published / took,
        "cpu_share": used / took,
        "blocks_per_cpu_s": published / used,
        "batches_published": count,
        "batches_written": written,
        "batches_in_file": in_file,
        "missing": missing,
        "gaps": gaps,
        "state": state,
    }


def play(connection: "Connection[Any, Any]", folder: str) -> None:
    """A process that plays a capture."""
    with Replayer(CaptureReader(folder), speed=None) as replayer:
        connection.recv()
        connection.send(replayer.workers[0].endpoint)
        connection.recv()
        before = time.process_time()
        replayer.run(wait_for=1)
        connection.send(time.process_time() - before)
        connection.recv()


def take(connection: "Connection[Any, Any]", endpoint: str) -> None:
    """A process that subscribes and keeps nothing."""
    context = zmq.Context()
    sub = context.socket(zmq.SUB)
    sub.setsockopt(zmq.SUBSCRIBE, b"")
    sub.connect(endpoint)
    taken = 0

    def drain() -> None:
        nonlocal taken
        while True:
            sub.recv_multipart()
            taken += 1

    threading.Thread(target=drain, daemon=True).start()
    while True:
        wanted = connection.recv()
        while taken < wanted:
            time.sleep(0.01)
        connection.send(taken)


def playing(blocks: int, count: int, folder: Path) -> dict[str, Any]:
    rates = []
    for _ in range(ROUNDS):
        with Part(play, str(folder)) as player, Part(take, player.ask("where")) as taker:
            used = player.ask("go")
            assert taker.ask(count) == count
        rates.append(blocks / used)
    return {
        "what": "replay",
        "how": "as fast as it is taken",
        "blocks_per_cpu_s": max(rates),
        "batches": count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=500_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    stream = payloads(options.blocks)
    blocks = sum(measure(payload)[1] for payload in stream)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "capture"
        rows = in_process(stream, blocks, folder)
        rows.append(playing(blocks, len(stream), folder))
        for rate, event_blocks, batch_blocks in ((200_000, 96, 256), (500_000, 96, 256), (200_000, 1, 16)):
            rows.append(recording(rate, options.seconds, folder, event_blocks, batch_blocks))
    for row in rows:
        for name, value in row.items():
            row[name] = round(value, 3 if value < 1_000 else 0) if isinstance(value, float) else value
    save("capture", __doc__ or "", rows)


if __name__ == "__main__":
    main()
