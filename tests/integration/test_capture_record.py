"""Recording from real sockets: everything once, whatever happens on the way, and a file whatever ends the recorder."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from engine_process import running_engine, wait_until
from kvevents.events import BlockStored, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport import CaptureReader, CaptureWriter, DeliverySettings, Recorder, Source, State, ZmqPublisher
from kvevents.transport.capture import CapturedBatch, CapturedReset, CapturedState
from kvevents.wire import decode_batch, encode_batch

pytestmark = pytest.mark.integration

ANY = "tcp://127.0.0.1:0"
QUICK = DeliverySettings(idle_probe_s=0.2, settle_s=0.05)
COMMAND = (sys.executable, "-m", "kvevents")


def stored(number: int, tokens: int = 3) -> bytes:
    parent = number + (1 << 60) - 1 if number else None
    event = BlockStored([number + (1 << 60)], parent, [number, tokens, 3, 4], 4, medium="GPU", cache_salt="secret")
    return encode_batch(KVEventBatch(float(number), [event], 0))


def source_of(publisher: ZmqPublisher, **settings: object) -> Source:
    return Source("w", publisher.endpoint, replay_endpoint=publisher.replay_endpoint, dp_rank=0, **settings)  # type: ignore[arg-type]


def test_a_recorder_that_comes_late_has_every_batch_once(tmp_path: Path) -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY, topic="kv@model") as publisher:
        for number in range(5):
            publisher.publish(stored(number))
        with CaptureWriter(tmp_path, raw=True) as writer, Recorder([source_of(publisher)], writer) as recorder:
            for _ in wait_until():
                if recorder.states()["w", 0].state is State.LIVE:
                    break
            for number in range(5, 9):
                publisher.publish(stored(number))
            for _ in wait_until():
                if writer.stats().batches == 9:
                    break
    reader = CaptureReader(tmp_path)
    records = list(reader)
    batches = [record for record in records if isinstance(record, CapturedBatch)]
    assert [batch.sequence for batch in batches] == list(range(9))
    assert [batch.payload for batch in batches] == [stored(number) for number in range(9)]
    assert [batch.replayed for batch in batches] == [True] * 5 + [False] * 4
    assert {batch.topic for batch in batches} == {b"kv@model"}
    states = [record for record in records if isinstance(record, CapturedState)]
    assert [(state.state, state.code) for state in states][-1] == ("live", "complete")
    assert (states[-1].counters["applied"], states[-1].counters["replayed"]) == (9, 5)
    assert (reader.damage, reader.ended) == ([], True)


def test_a_new_life_of_the_engine_is_in_the_capture(tmp_path: Path) -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY) as first:
        endpoint, replay_endpoint = first.endpoint, first.replay_endpoint
        source = source_of(first)
        writer = CaptureWriter(tmp_path, raw=True)
        recorder = Recorder([source], writer, settings=QUICK)
        for number in range(3):
            first.publish(stored(number))
        for _ in wait_until():
            if writer.stats().batches == 3:
                break
    with writer, recorder, ZmqPublisher(endpoint, replay_endpoint=replay_endpoint, bind=True) as second:
        second.publish(stored(0, tokens=99))
        for _ in wait_until():
            if writer.stats().batches == 4:
                break
    records = [record for record in CaptureReader(tmp_path) if not isinstance(record, CapturedState)]
    resets = [place for place, record in enumerate(records) if isinstance(record, CapturedReset)]
    assert resets
    after = records[resets[-1] + 1 :]
    assert [(b.sequence, b.payload) for b in after if isinstance(b, CapturedBatch)] == [(0, stored(0, tokens=99))]


WRITING = """
import itertools, sys
from kvevents.transport import CaptureReader, CaptureWriter
from kvevents.transport.capture import CaptureSource
from kvevents.wire import decode_batch, encode_batch
from kvevents.events import BlockRemoved, KVEventBatch
writer = CaptureWriter(sys.argv[1], chunk_bytes=2_000, rotate_bytes=50_000)
for number in itertools.count():
    batch = KVEventBatch(0.0, [BlockRemoved([number])], 0)
    writer.write_batch(CaptureSource("w"), encode_batch(batch), sequence=number)
    if number % 100 == 99:
        writer.flush()
        print(number, flush=True)
"""


def test_what_was_flushed_is_read_after_the_writer_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        flushed = [int(process.stdout.readline()) for _ in range(30)][-1]
        process.kill()
        rest = process.stdout.read().split()
    flushed = int(rest[-1]) if rest and rest[-1].endswith("99") else flushed
    reader = CaptureReader(tmp_path)
    sequences = [batch.sequence for batch in reader.batches()]
    assert sequences == list(range(len(sequences)))
    assert len(sequences) > flushed
    assert not reader.ended
    assert len(reader.heads) > 1


def test_the_command_records_an_engine_and_what_it_wrote_is_what_the_engine_holds(tmp_path: Path) -> None:
    events = json.dumps({"endpoint": ANY, "replay_endpoint": ANY, "topic": "kv"})
    with running_engine(
        "--page-size", "4", "--dp-size", "2", "--speed", "1000", "--kv-events-config", events
    ) as engine:
        ask(engine.url, range(5))
        command = [*COMMAND, "record", engine.url, "-o", str(tmp_path), "--keep-hashes", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert "recording 2 sources" in process.stderr.readline()
            ask(engine.url, range(5, 40))
            held = httpx.get(f"{engine.url}/holdings").json()["ranks"]
            for _ in wait_until():
                if recorded(tmp_path) == sum(rank["seq"] + 1 for rank in held):
                    break
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=30)
            assert process.returncode == 0
    summary = json.loads(out)
    assert [source["state"] for source in summary["sources"]] == ["live", "live"]
    assert summary["refused"] == summary["dropped_fields"] == 0
    assert summary["blocks"] > 0
    index = PrefixIndex(4)
    for batch in CaptureReader(summary["files"][0]).batches():
        index.apply("w", batch.payload, seq=batch.sequence, dp_rank=batch.source.dp_rank)
        assert b"tenant" not in batch.payload
    assert {
        rank: {tier: blocks for tier, blocks in tiers.items() if blocks} for rank, tiers in index.holdings("w").items()
    } == {rank["dp_rank"]: {tier: set(blocks) for tier, blocks in rank["tiers"].items() if blocks} for rank in held}


def recorded(folder: Path) -> int:
    return sum(1 for _ in CaptureReader(folder).batches()) if any(folder.glob("*.kvcap")) else 0


def ask(url: str, numbers: range) -> None:
    with httpx.Client(base_url=url) as client:
        for number in numbers:
            prompt = [1, 2, 3, 4, 5, 6, 7, 8, *[number] * 8]
            body = {"model": "m", "prompt": prompt, "max_tokens": 2, "cache_salt": f"tenant-{number % 3}"}
            answer = client.post("/v1/completions", json=body, headers={"X-data-parallel-rank": str(number % 2)})
            assert answer.status_code == 200


def test_the_command_ends_by_itself_and_says_when_nothing_was_reached(tmp_path: Path) -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher:
        publisher.publish(stored(0))
        assert publisher.replay_endpoint is not None
        where = [f"worker-1={publisher.endpoint}", "--replay", publisher.replay_endpoint, "-o", str(tmp_path / "a")]
        words = [*COMMAND, "record", *where, "--tokens", "--duration", "1"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        assert "worker-1: 1 batches" in done.stdout
        assert "1 batches with 1 blocks" in done.stdout
        assert "can read the prompts" in done.stderr
    (batch,) = CaptureReader(tmp_path / "a").batches()
    (event,) = decode_batch(batch.payload).events
    assert isinstance(event, BlockStored)
    assert event.token_ids == [0, 3, 3, 4]
    assert event.block_hashes != [1 << 60]
    words = ["tcp://127.0.0.1:9", "-o", str(tmp_path / "b"), "--duration", "0.3"]
    done = subprocess.run([*COMMAND, "record", *words], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 3
    assert "nothing was reached" in done.stderr
