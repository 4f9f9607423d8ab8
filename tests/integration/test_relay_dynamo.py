"""Dynamo's standalone indexer behind a relay, which it takes for the engine; relay and engine are each killed once.

Runs where the peers' environment has the indexer (`python -m benchmarks.end_to_end` puts it there).
"""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.dynamo import REQUIREMENTS
from benchmarks.dynamo_indexer import MODEL, DynamoIndexer
from benchmarks.http_client import HttpClient
from benchmarks.peers import ENVIRONMENT, Unavailable

from publishing_process import PAGE, PublishingProcess
from relay_process import RelayProcess, running_relay

pytestmark = pytest.mark.integration
DEADLINE_S = 30.0


@pytest.fixture
def indexer() -> Iterator[DynamoIndexer]:
    installed = ENVIRONMENT / ".installed"
    if not installed.exists() or not set(REQUIREMENTS) <= set(installed.read_text().split()):
        pytest.skip(f"{', '.join(REQUIREMENTS)} are not in {ENVIRONMENT.name}: python -m benchmarks.end_to_end")
    try:
        indexer = DynamoIndexer(PAGE)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with contextlib.closing(indexer):
        yield indexer


def follow(indexer: DynamoIndexer, endpoint: str, replay_endpoint: str) -> None:
    where = {"instance_id": 1, "endpoint": endpoint, "replay_endpoint": replay_endpoint}
    indexer._http.send(HttpClient.post("/register", where | {"model_name": MODEL, "block_size": PAGE}))


def sockets(relay: RelayProcess) -> tuple[str, str]:
    events = relay.kv_events
    return (
        f"tcp://127.0.0.1:{events['endpoint_port_base']}",
        f"tcp://127.0.0.1:{events['replay_endpoint_port_base']}",
    )


def agrees(indexer: DynamoIndexer, engine: PublishingProcess) -> bool:
    """Whether it comes to hold what the engine holds; it learns only from the next batch what it missed."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        engine.work(1)
        truth = engine.holdings()
        settled = time.monotonic() + 0.5
        while time.monotonic() < settled:
            if indexer.blocks().get(0) == truth:
                return True
            time.sleep(0.02)
    return False


def test_it_holds_what_the_engine_holds_whoever_was_killed(indexer: DynamoIndexer, tmp_path: Path) -> None:
    with PublishingProcess(seed=1) as first, contextlib.ExitStack() as later:
        options: list[str | Path] = [
            first.endpoint,
            "--source-replay",
            first.replay_endpoint,
            "--source-topic",
            "kv",
            "--log",
            tmp_path,
        ]
        with running_relay(*options) as relay:
            follow(indexer, *sockets(relay))
            first.work(100)
            assert agrees(indexer, first)
            relay.end(signal.SIGKILL)
        first.work(100)
        again = later.enter_context(running_relay(*options))
        assert sockets(again) == sockets(relay)
        assert agrees(indexer, first), "the relay was killed"
        first.kill()
        second = later.enter_context(PublishingProcess(first.endpoint, first.replay_endpoint, seed=2))
        second.work(20)
        assert agrees(indexer, second), "the engine was killed"


def test_a_late_indexer_gets_what_has_left_the_recent_batches(indexer: DynamoIndexer, tmp_path: Path) -> None:
    with PublishingProcess(seed=1) as engine:
        options = [engine.endpoint, "--source-replay", engine.replay_endpoint, "--source-topic", "kv"]
        with running_relay(*options, "--log", tmp_path, "--replay-mib", "0.02", "--window", "1ms") as relay:
            for _ in range(10):
                engine.work(30)
            follow(indexer, *sockets(relay))
            assert agrees(indexer, engine)
