"""A capture is played as the engine that it came from, and consumers cannot tell."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine_process import wait_until
from kvevents.errors import ConfigError, TransportError
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport import CaptureReader, CaptureWriter, Replayer, Source, State, Subscriber, discover
from kvevents.transport.capture import CaptureSource
from kvevents.wire import decode_batch, encode_batch
from recording_sink import RecordingSink

pytestmark = pytest.mark.integration

COMMAND = (sys.executable, "-m", "kvevents")
W0, W1 = CaptureSource("w", 0, "kv", 4), CaptureSource("w", 1, "kv", 4)


def payload(rank: int, *events: KVCacheEvent) -> bytes:
    return encode_batch(KVEventBatch(0.0, list(events), rank))


def stored(number: int, tokens: int = 3) -> BlockStored:
    parent = number + (1 << 60) - 1 if number else None
    return BlockStored([number + (1 << 60)], parent, [number, tokens, 3, 4], 4, medium="GPU", cache_salt="salt")


def record(folder: Path, count: int = 20, *, step_s: float = 0.0, ranks: tuple[CaptureSource, ...] = (W0, W1)) -> Path:
    """A capture of so many batches a rank; every fifth block is removed again."""
    with CaptureWriter(folder) as writer:
        for number in range(count):
            for source in ranks:
                gone = [BlockRemoved([number + (1 << 60)], "GPU")] if number % 5 == 4 and number == count - 1 else []
                batch = payload(source.dp_rank or 0, stored(number), *gone)
                writer.write_batch(source, batch, sequence=number, topic=b"kv", arrived=1_000 + number * step_s)
    return folder


@contextlib.contextmanager
def playing(replayer: Replayer, **how: Any) -> Iterator[Replayer]:
    """It runs and serves in a thread."""

    def work() -> None:
        replayer.run(**how)
        replayer.serve()

    with replayer:
        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield replayer
        finally:
            replayer.stop()
            thread.join()


def fed(reader: CaptureReader) -> PrefixIndex:
    """An index that was fed with a capture directly."""
    index = PrefixIndex(4)
    for batch in reader.batches():
        index.apply("w", batch.payload, seq=batch.sequence, dp_rank=batch.source.dp_rank)
    return index


def follow(url: str, index: PrefixIndex) -> Subscriber:
    return Subscriber(discover(url, worker_id="w"), index)


def wait_for(subscriber: Subscriber, last: int) -> None:
    for _ in wait_until():
        states = subscriber.states().values()
        if all(state.state is State.LIVE and state.last_sequence == last for state in states):
            return


@pytest.mark.parametrize("speed", [None, 1_000.0])
def test_an_index_that_follows_it_is_like_one_that_read_the_file(tmp_path: Path, speed: float | None) -> None:
    reader = CaptureReader(record(tmp_path, step_s=0.01))
    with playing(Replayer(reader, speed=speed), wait_for=1) as replayer:
        index = PrefixIndex(4)
        with follow(replayer.workers[0].url, index) as subscriber:
            wait_for(subscriber, 19)
            counters = [state.counters for state in subscriber.states().values()]
        assert index.holdings("w") == fed(CaptureReader(tmp_path)).holdings("w")
        assert [count.applied for count in counters] == [20, 20]
        assert replayer.stats().blocks == 2 * 21
        late = PrefixIndex(4)
        with follow(replayer.workers[0].url, late) as subscriber:
            wait_for(subscriber, 19)
        assert late.holdings("w") == index.holdings("w")


def test_server_info_names_sockets_topic_and_ranks(tmp_path: Path) -> None:
    with Replayer(CaptureReader(record(tmp_path))) as replayer:
        (worker,) = replayer.workers
        first, second = discover(worker.url)
        assert (first.endpoint, first.replay_endpoint) == (worker.endpoint, worker.replay_endpoint)
        assert (first.dp_rank, second.dp_rank, first.topic, first.block_size) == (0, 1, "kv", 4)
        assert httpx.get(f"{worker.url}/health").status_code == 200
        assert httpx.get(f"{worker.url}/nothing").status_code == 404


def test_each_worker_has_its_own_url(tmp_path: Path) -> None:
    sources = (CaptureSource("a", 0, "kv", 4), CaptureSource("b", None, "kv", 4))
    with playing(Replayer(CaptureReader(record(tmp_path, 5, ranks=sources)), speed=None)) as replayer:
        assert [worker.worker_id for worker in replayer.workers] == ["a", "b"]
        for worker in replayer.workers:
            sink = RecordingSink()
            with Subscriber(discover(worker.url, worker_id="w"), sink) as subscriber:
                wait_for(subscriber, 4)
            assert sink.sequences() == [0, 1, 2, 3, 4]


def test_endpoints_of_ones_own(tmp_path: Path) -> None:
    record(tmp_path / "capture", 2, ranks=(W0,))
    live, repeats = f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/replay"
    with playing(Replayer(CaptureReader(tmp_path / "capture"), to=live, replay_to=repeats, speed=None)) as replayer:
        assert replayer.workers[0].endpoint == live
        sink = RecordingSink()
        with Subscriber(discover(replayer.workers[0].url, worker_id="w"), sink) as subscriber:
            wait_for(subscriber, 1)
        with pytest.raises(TransportError, match="in use"):
            Replayer(CaptureReader(tmp_path / "capture"), to=live)


def test_a_recorded_restart_is_a_restart(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path) as writer:
        for number in range(5):
            writer.write_batch(W0, payload(0, stored(number)), sequence=number)
        writer.write_reset(W0)
        for number in range(2):
            writer.write_batch(W0, payload(0, stored(number, tokens=77)), sequence=number, arrived=time.time() + 5)
    expected = PrefixIndex(4)
    for batch in list(CaptureReader(tmp_path).batches())[5:]:
        expected.apply("w", batch.payload)
    with playing(Replayer(CaptureReader(tmp_path), speed=50.0), wait_for=1) as replayer:
        index = PrefixIndex(4)
        with follow(replayer.workers[0].url, index) as subscriber:
            wait_for(subscriber, 1)
            assert subscriber.state("w", 0).counters.restarts == 1
    assert index.holdings("w") == expected.holdings("w")


def test_a_loop_goes_on_counting_after_a_clear(tmp_path: Path) -> None:
    record(tmp_path, 3, step_s=0.02, ranks=(W0,))
    with playing(Replayer(CaptureReader(tmp_path)), wait_for=1, loop=True) as replayer:
        sink = RecordingSink()
        with Subscriber(discover(replayer.workers[0].url, worker_id="w"), sink):
            for _ in wait_until():
                if len(sink.applied) >= 8:
                    break
    assert sink.sequences()[:8] == list(range(8))
    kinds = [[type(event) for event in decode_batch(data).events] for data in sink.payloads()[:8]]
    assert kinds[3] == [AllBlocksCleared] == kinds[7]
    assert sink.payloads()[4:7] == sink.payloads()[:3]


def test_it_takes_the_time_that_the_recording_took(tmp_path: Path) -> None:
    record(tmp_path, 4, step_s=0.1, ranks=(W0,))
    with Replayer(CaptureReader(tmp_path), speed=1.0) as replayer:
        begin = time.monotonic()
        replayer.run()
        assert time.monotonic() - begin >= 0.3
        assert replayer.stats().position_s == pytest.approx(0.3)


def test_a_slow_subscriber_loses_nothing_at_the_greatest_speed(tmp_path: Path) -> None:
    count = 3_000
    record(tmp_path, count, ranks=(W0,))
    sink = RecordingSink(fails=lambda _: time.sleep(0.0001))
    with playing(Replayer(CaptureReader(tmp_path), speed=None), wait_for=1) as replayer:
        (worker,) = replayer.workers
        source = Source("w", worker.endpoint, replay_endpoint=worker.replay_endpoint, dp_rank=0, topic="kv")
        with Subscriber([source], sink) as subscriber:
            wait_for(subscriber, count - 1)
            assert subscriber.state("w", 0).counters.missing == 0
    assert sink.sequences() == list(range(count))


def test_what_cannot_be_played_is_said(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path):
        pass
    with pytest.raises(ConfigError, match="expected a capture with batches"):
        Replayer(CaptureReader(tmp_path))
    with pytest.raises(ConfigError, match="speed: expected a number above 0"):
        Replayer(CaptureReader(tmp_path), speed=0)


def test_the_command_plays_a_damaged_file_up_to_the_damage_and_tail_reads_it(tmp_path: Path) -> None:
    (file,) = record(tmp_path, 6, ranks=(W0,)).iterdir()
    with file.open("ab") as out:
        out.write(b"\x51\x2a\x4d\x18\x20\0\0\0half a chunk")
    words = [*COMMAND, "replay", str(file), "--speed", "max", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        tail = [*COMMAND, "tail", ready["url"], "--limit", "6", "--json"]
        done = subprocess.run(tail, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        process.send_signal(signal.SIGINT)
        out_text, err = process.communicate(timeout=30)
        assert process.returncode == 0
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["seq"] for event in events if "event" in event] == list(range(6))
    summary = json.loads(out_text)
    assert (summary["batches"], summary["blocks"], summary["total_batches"]) == (6, 6, 6)
    assert "20 bytes from byte" in err
    assert "are left out" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["replay", "nothing"], "no such file"),
        (["replay", str(Path(__file__)), "--speed", "max"], "expected a capture"),
        (["replay", str(Path(__file__)), "--speed", "0"], "--speed: expected a number above 0"),
        (["record", "-o", "x"], "expected the URL of a worker"),
        (["record", "http://127.0.0.1:1", "-o", "x", "--topic", "kv"], "leave them out"),
        (["record", "tcp://127.0.0.1:1", "-o", "x", "--replay", "a", "--replay", "b"], "got 2"),
    ],
)
def test_wrong_words_are_a_matter_of_usage(words: list[str], message: str) -> None:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
