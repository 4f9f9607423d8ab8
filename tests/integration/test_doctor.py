"""`kvevents doctor` against real engines and routers: seven set-ups that are broken and work all the same."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from engine_process import EngineProcess, running_engine
from kvevents.doctor import Diagnosis, Finding, Hop, Verdict
from relay_process import running_relay
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
    page = () if "--page-size" in options else ("--page-size", "16")
    with running_engine(*page, "--kv-events-config", EVENTS, *options) as process:
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


def other_tokenizer(path: Path) -> str:
    """The directory of a model that makes one token more of every text than the simulated one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    other = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    other.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    other.decoder = decoders.ByteLevel()
    path.mkdir()
    other.save(str(path / "tokenizer.json"))
    return str(path)


def ask(process: EngineProcess, path: str, **request: object) -> None:
    body = {"model": "kvevents-sim", "max_tokens": 1, **request}
    httpx.post(f"{process.url}{path}", json=body, timeout=30).raise_for_status()


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


def test_the_replay_endpoint_is_wrong() -> None:
    with engine() as process:
        wrong = f"tcp://127.0.0.1:{free_port()}"
        cause = the_cause(process.url, "--replay", wrong, "--patience", "0.5")
    assert cause.hop is Hop.REPLAY
    assert wrong in cause.found


def test_the_ranks_are_more_than_the_engine_has() -> None:
    with engine() as process:
        cause = the_cause(process.url, "--dp-size", "3")
    assert cause.hop is Hop.EVENTS
    assert "3 ranks" in cause.found


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
    directory = other_tokenizer(tmp_path / "model")
    with engine() as process:
        cause = the_cause(process.url, "--tokenizer", directory)
    assert cause.hop is Hop.TOKENIZER
    assert "text:" in cause.found


def test_an_engine_that_is_not_there() -> None:
    cause = the_cause(f"http://127.0.0.1:{free_port()}")
    assert cause.hop is Hop.REACHABLE


def test_the_router_has_another_tokenizer(tmp_path: Path) -> None:
    with engine() as process:
        config = Path(own_worker(tmp_path / "serve.toml", process))
        named = {"models": "kvevents-*", "path": other_tokenizer(tmp_path / "model")}
        lines = [f"{name} = {json.dumps(value)}" for name, value in named.items()]
        config.write_text(config.read_text() + "[[prompts.tokenizer]]\n" + "\n".join(lines) + "\n")
        with running_router("--config", str(config)) as router:
            cause = the_cause(process.url, "--router", router)
    assert cause.hop is Hop.ROUTER
    assert "in the engine" in cause.found
    assert "prompts.tokenizer" in cause.fix


def test_the_router_has_no_tokenizer_for_the_model() -> None:
    with engine("--model-name", "own") as process, running_router("--worker", process.url) as router:
        code, diagnosis = examined(process.url, "--router", router)
    (found,) = [finding for finding in diagnosis.findings if finding.hop is Hop.ROUTER]
    assert code == 0
    assert found.verdict is Verdict.NOTE
    assert "no tokenizer is configured for model 'own'" in found.found


def test_the_router_follows_one_rank_of_two(tmp_path: Path) -> None:
    with engine("--dp-size", "2") as process:
        config = own_worker(tmp_path / "serve.toml", process)
        with running_router("--config", config) as router:
            cause = the_cause(process.url, "--router", router)
    assert cause.hop is Hop.ROUTER
    assert "1 of the engine's 2 ranks" in cause.found


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--dp-size", "2"), id="ranks-take-turns"),
        pytest.param(("--page-size", "1"), id="prompts-share-their-first-tokens"),
        pytest.param(("--cache", "mamba", "--announce-groups"), id="mamba"),
    ],
)
def test_a_healthy_engine_has_no_cause(options: tuple[str, ...]) -> None:
    with engine(*options) as process, running_router("--worker", process.url) as router:
        for character in "0123456789abcdef":
            ask(process, "/v1/completions", prompt=f"{character}{character}")
            ask(process, "/v1/chat/completions", messages=[{"role": "user", "content": character}])
        code, diagnosis = examined(process.url, "--router", router, "--tokenizer", "bytes")
    assert not diagnosis.causes
    assert code == 0


def test_a_router_that_follows_a_relay_is_no_cause(tmp_path: Path) -> None:
    with engine() as process, running_relay(process.url) as relay:
        config = tmp_path / "serve.toml"
        config.write_text(f'[[worker]]\nurl = "{process.url}"\nevents = "{relay.url}"\n')
        with running_router("--config", str(config)) as router:
            code, diagnosis = examined(process.url, "--router", router)
    assert not diagnosis.causes
    assert code == 0
