"""`kvevents lint` as a process, against real sockets."""

import subprocess
import sys

import httpx
import msgspec
import pytest

from engine_process import running_engine
from kvevents import cli
from kvevents.events import BlockRemoved, KVEventBatch
from kvevents.lint import LintReport
from kvevents.transport import ZmqPublisher

EVENTS = '{"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"}'

pytestmark = pytest.mark.integration


def lint(*words: str) -> tuple[int, LintReport]:
    command = [sys.executable, "-m", "kvevents", "lint", *words, "--duration", "1.5", "--json"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    return done.returncode, msgspec.json.decode(done.stdout, type=LintReport)


def test_a_running_engine_is_without_faults_and_what_it_did_before_is_read() -> None:
    with running_engine("--page-size", "16", "--kv-events-config", EVENTS) as engine:
        prompt = list(range(1000, 1128))
        answer = httpx.post(f"{engine.url}/v1/completions", json={"model": "m", "prompt": prompt, "max_tokens": 1})
        answer.raise_for_status()
        code, report = lint(engine.url, "--fail-on", "info")
    (facts,) = report.streams
    assert (facts.stored_blocks, facts.dialect, facts.scheme) == (8, "sglang", "sglang")
    assert code == 0, report.findings


def test_a_publisher_that_removes_what_it_never_stored_is_named() -> None:
    with ZmqPublisher("tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0") as publisher:
        publisher.publish(KVEventBatch(1.0, [BlockRemoved([99], medium="GPU")]))
        assert publisher.replay_endpoint is not None
        code, report = lint(publisher.endpoint, "--replay", publisher.replay_endpoint)
    assert code == 1
    assert [finding.code for finding in report.findings] == ["KV305"]


def test_a_socket_at_which_nothing_publishes_is_not_without_findings() -> None:
    command = [sys.executable, "-m", "kvevents", "lint", "tcp://127.0.0.1:1", "--duration", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == cli.OTHER_SIDE_FAILED
    assert "nothing was reached" in done.stderr
    assert not done.stdout
