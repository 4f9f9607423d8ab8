"""`kvevents doctor` against real engines and routers: seven set-ups that are broken and work all the same."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine_process import EngineProcess, running_engine
from kvevents.doctor import Diagnosis, Finding, Hop, Verdict
from router_process import running_router

EVENTS = '{"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*", "topic": "kv-events"}'
MOST_SECONDS = 20.0

pytestmark = pytest.mark.integration


def examined(*words: str) -> tuple[int, Diagnosis]:
    """The exit code and what was found, within the time that it may take."""
    command = [sys.executable, "-m", "kvevents", "doctor", *words, "--json"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert time.monotonic() - began < MOST_SECONDS
    assert done.stdout, done.stderr
    return done.returncode, msgspec.json.decode(done.stdout, type=Diagnosis)


def the_cause(*words: str) -> Finding:
    """The one cause that is named."""
    code, diagnosis = examined(*words)
    assert code == 1
    (cause,) = diagnosis.causes
    assert cause.fix
    return cause


@contextlib.contextmanager
def engine(*options: str) -> Iterator[EngineProcess]:
    with running_engine("--page-size", "16", "--kv-events-config", EVENTS, *options) as process:
        yield process


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def own_worker(path: Path, process: EngineProcess, **settings: object) -> str:
    """A router's configuration for an engine whose sockets are named by hand."""
    events = process.kv_events
    named = {
        "events": f"tcp://127.0.0.1:{events['endpoint_port_base']}",
        "replay": f"tcp://127.0.0.1:{events['replay_endpoint_port_base']}",
        "block_size": 16,
    } | settings
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"url": process.url, **named}.items()]
    path.write_text("[[worker]]\n" + "\n".join(lines) + "\n")
    return str(path)


def test_where_all_is_well_every_hop_says_so() -> None:
    with (
        engine("--adapter", "sql") as process,
        running_router("--worker", process.url) as router,
    ):
        code, diagnosis = examined(process.url, "--router", router, "--adapter", "sql", "--tokenizer", "bytes")
    assert {finding.hop: finding.verdict for finding in diagnosis.findings} == dict.fromkeys(Hop, Verdict.FINE)
    assert code == 0


def test_events_are_off() -> None:
    with running_engine() as process:
        cause = the_cause(process.url)
    assert cause.hop is Hop.EVENTS
    assert "publishes no KV cache events" in cause.found
    assert "--kv-events-config" in cause.fix


def test_the_port_is_wrong(tmp_path: Path) -> None:
    with engine() as process:
        wrong = f"tcp://127.0.0.1:{free_port()}"
        cause = the_cause(process.url, "--events", wrong)
        assert cause.hop is Hop.EVENTS
        assert wrong in cause.found
        right = f"tcp://127.0.0.1:{process.kv_events['endpoint_port_base']}"
        assert right in cause.fix
        config = own_worker(tmp_path / "serve.toml", process, events=wrong)
        with running_router("--config", config) as router:
            cause = the_cause(process.url, "--router", router)
        assert cause.hop is Hop.ROUTER
        assert wrong in cause.found
        assert right in cause.fix


def test_the_topic_is_wrong(tmp_path: Path) -> None:
    with engine() as process:
        cause = the_cause(process.url, "--topic", "cache")
        assert cause.hop is Hop.TOPIC
        assert "'kv-events'" in cause.found
        config = own_worker(tmp_path / "serve.toml", process, topic="cache")
        with running_router("--config", config) as router:
            cause = the_cause(process.url, "--router", router)
        assert cause.hop is Hop.ROUTER
        assert "topic" in cause.fix


def test_the_block_size_is_wrong() -> None:
    with engine() as process:
        cause = the_cause(process.url, "--block-size", "24")
        assert cause.hop is Hop.BLOCK_SIZE
        assert "16" in cause.fix
        with running_router("--worker", process.url, "--block-size", "24") as router:
            cause = the_cause(process.url, "--router", router)
        assert cause.hop is Hop.ROUTER
        assert "16" in cause.found
        assert "24" in cause.found


def test_the_hash_seed_is_another() -> None:
    with engine("--cache", "block_pool", "--hash-seed", "7") as process:
        cause = the_cause(process.url, "--seed", "0")
    assert cause.hop is Hop.HASHES
    assert "'7'" in cause.found
    assert "PYTHONHASHSEED=0" in cause.fix


@pytest.mark.parametrize("cache", ["radix", "block_pool"])
def test_the_adapter_has_another_name(cache: str) -> None:
    with engine("--cache", cache, "--adapter", "sql=sql-v2") as process:
        cause = the_cause(process.url, "--adapter", "sql")
    assert cause.hop is Hop.ADAPTER
    assert "'sql-v2'" in cause.found


def test_the_tokenizer_disagrees(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    other = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    other.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    other.decoder = decoders.ByteLevel()
    other.save(str(tmp_path / "tokenizer.json"))
    with engine() as process:
        cause = the_cause(process.url, "--tokenizer", str(tmp_path))
    assert cause.hop is Hop.TOKENIZER
    assert "text:" in cause.found


def test_an_engine_that_is_not_there() -> None:
    cause = the_cause(f"http://127.0.0.1:{free_port()}")
    assert cause.hop is Hop.REACHABLE
