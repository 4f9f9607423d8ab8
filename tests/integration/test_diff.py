"""`kvevents diff` as a process, against a running router and engine."""

import subprocess
import sys

import httpx
import msgspec
import pytest

from engine_process import running_engine
from kvevents.diff import DiffReport
from kvevents.transport.http_fetch import Address
from router_process import running_router

EVENTS = '{"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"}'

pytestmark = pytest.mark.integration


def diff(*words: str) -> tuple[int, DiffReport]:
    command = [sys.executable, "-m", "kvevents", "diff", *words, "--json"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    return done.returncode, msgspec.json.decode(done.stdout, type=DiffReport)


def test_a_router_believes_what_its_engine_holds_and_not_what_another_does() -> None:
    with (
        running_engine("--page-size", "16", "--kv-events-config", EVENTS) as engine,
        running_engine("--page-size", "16", "--kv-events-config", EVENTS) as other,
        running_router("--worker", engine.url) as router,
    ):
        request = {"model": "kvevents-sim", "prompt": list(range(1000, 1128)), "max_tokens": 1}
        httpx.post(f"{router}/v1/completions", json=request, timeout=30).raise_for_status()
        code, report = diff(router, engine.url)
        assert (code, report.ranks[0].tiers[0].both) == (0, 8)
        assert report.ranks[0].is_same_moment
        code, report = diff(router, other.url, "--worker", Address.parse(engine.url).address, "--wait", "0.2")
        assert code == 1
        assert [(one.side, one.blocks, one.depth) for one in report.ranks[0].branches] == [("stale", 8, 0)]
