"""`kvevents tail` as a process, against a publisher with real sockets."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine_process import running_engine
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from kvevents.transport import ZmqPublisher

pytestmark = pytest.mark.integration

STORED = BlockStored([1 << 60, 2 << 60], None, [1, 2, 3, 4, 5, 6, 7, 8], 4, medium="GPU", cache_salt="secret")
REMOVED = BlockRemoved([2 << 60], medium="GPU")


@pytest.fixture
def publisher() -> Iterator[ZmqPublisher]:
    """A publisher that has already published a clear and a store, which replay gives to whoever comes late."""
    with ZmqPublisher("tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0", topic="kv") as publisher:
        publisher.publish(KVEventBatch(1.0, [AllBlocksCleared()]))
        publisher.publish(KVEventBatch(2.0, [STORED, REMOVED]))
        yield publisher


def tail(*words: str, **options: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "kvevents", "tail", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def follow(publisher: ZmqPublisher, *words: str) -> "subprocess.Popen[str]":
    assert publisher.replay_endpoint is not None
    return tail(publisher.endpoint, "--replay", publisher.replay_endpoint, *words)


def test_a_late_tail_prints_what_was_missed_and_then_what_comes(publisher: ZmqPublisher) -> None:
    with follow(publisher, "--json", "--limit", "4") as process:
        assert process.stdout is not None
        events = []
        for line in process.stdout:
            record = json.loads(line)
            if "event" in record:
                events.append((record["seq"], record["dp_rank"], record["event"]["type"]))
            if len(events) == 3 and "event" in record:
                publisher.publish(KVEventBatch(3.0, [REMOVED, AllBlocksCleared()]))
        assert process.wait(20) == 0
    assert events == [
        (0, 0, "AllBlocksCleared"),
        (1, 0, "BlockStored"),
        (1, 0, "BlockRemoved"),
        (2, 0, "BlockRemoved"),
    ]


def test_an_engines_url_is_enough_to_follow_all_its_ranks() -> None:
    config = '{"endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0"}'
    options = ("--kv-events-config", config, "--dp-size", "2", "--page-size", "16", "--speed", "100")
    with running_engine(*options) as engine, tail(engine.url, "--json", "--limit", "4") as process:
        for rank, length in ((0, 40), (1, 70)):
            body = {"prompt": list(range(length)), "max_tokens": 1, "data_parallel_rank": rank}
            httpx.post(f"{engine.url}/v1/completions", json=body, timeout=20).raise_for_status()
        out, _ = process.communicate(timeout=20)
        assert process.returncode == 0
    events = [record for record in map(json.loads, out.splitlines()) if "event" in record]
    assert {record["worker"] for record in events} == {engine.url.removeprefix("http://")}
    stored = {record["dp_rank"]: record["event"] for record in events if record["event"]["type"] == "BlockStored"}
    assert {rank: len(event["block_hashes"]) for rank, event in stored.items()} == {0: 2, 1: 4}
    assert stored[1]["token_ids"] == list(range(64))


def test_several_workers_are_followed_and_chosen_from(publisher: ZmqPublisher) -> None:
    with ZmqPublisher("tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0", topic="kv") as other:
        other.publish(KVEventBatch(1.0, [STORED, REMOVED]))
        urls = [f"a={publisher.endpoint}", f"b={other.endpoint}"]
        repeats = [word for one in (publisher, other) for word in ("--replay", str(one.replay_endpoint))]
        filters = ["--kind", "removed", "--kind", "cleared", "--worker", "a", "--rank", "0", "--tier", "GPU"]
        with tail(*urls, *repeats, *filters, "--json", "--limit", "2") as process:
            out, err = process.communicate(timeout=20)
            assert process.returncode == 0, err
    shown = [json.loads(line) for line in out.splitlines()]
    assert [(record["worker"], record["event"]["type"]) for record in shown] == [
        ("a", "AllBlocksCleared"),
        ("a", "BlockRemoved"),
    ]
    assert err.count("following") == 2


def test_prompts_are_readable_with_a_tokenizer() -> None:
    sockets = '{"endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0"}'
    with running_engine("--kv-events-config", sockets, "--page-size", "16", "--speed", "100") as engine:
        body = {"prompt": "What is the weather in Paris?", "max_tokens": 1}
        httpx.post(f"{engine.url}/v1/completions", json=body, timeout=20).raise_for_status()
        with tail(engine.url, "--tokenizer", "bytes", "--kind", "stored", "--limit", "1") as process:
            out, _ = process.communicate(timeout=20)
    assert '16 tokens "What is the weat"' in out


def test_lines_for_people_tell_events_and_states(publisher: ZmqPublisher) -> None:
    with follow(publisher, "--limit", "3") as process:
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0
    lines = [line.split(" ", 1)[1] for line in out.splitlines()]
    name = publisher.endpoint
    assert f"{name}/0 #0 cleared" in lines
    stored = f"{name}/0 #1 stored GPU 2 blocks 10000000..20000000, no parent, 8 tokens [1, 2, 3, 4, 5, 6, ...], salt ~"
    assert any(line.startswith(stored) for line in lines)
    assert f"{name}/0 #1 removed GPU 1 block 20000000" in lines
    assert any(line.startswith(f"{name} is recovering") for line in lines)
    assert "secret" not in out
    assert f"following {name}" in err


def test_another_topic_than_the_publishers_is_said(publisher: ZmqPublisher) -> None:
    with follow(publisher, "--topic", "other", "--json") as process:
        assert process.stdout is not None
        states = (json.loads(line) for line in process.stdout)
        degraded = next(record for record in states if record.get("state") == "degraded")
        process.terminate()
    assert "the publisher uses 'kv'" in degraded["reason"]


def test_a_pipe_that_closes_ends_it_quietly_even_while_nothing_comes(publisher: ZmqPublisher) -> None:
    with follow(publisher) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "removed" not in process.stdout.readline():
            pass
        process.stdout.close()
        assert process.wait(20) == 0
        assert "Traceback" not in process.stderr.read()


def test_an_interrupt_ends_it_quietly(publisher: ZmqPublisher) -> None:
    with follow(publisher) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert "Traceback" not in process.stderr.read()


def test_a_publisher_that_connects_is_bound_for(publisher: ZmqPublisher) -> None:
    with tail("tcp://127.0.0.1:0", "--bind", "--json", "--limit", "1") as process:
        assert process.stderr is not None
        endpoint = process.stderr.readline().split()[-1]
        with ZmqPublisher(endpoint, bind=False) as connecting:
            while process.poll() is None:
                connecting.publish(KVEventBatch(1.0, [REMOVED]))
                try:
                    process.wait(0.05)
                except subprocess.TimeoutExpired:
                    continue
        assert process.returncode == 0


def test_a_port_in_use_is_one_line_and_exit_3(publisher: ZmqPublisher) -> None:
    with tail(publisher.endpoint, "--bind") as process:
        _, err = process.communicate(timeout=20)
        assert process.returncode == 3
    assert err.splitlines()[-1].startswith("kvevents: ")
    assert "Traceback" not in err
