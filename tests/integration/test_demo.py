"""`kvevents demo` as users run it: figures that agree, failures that are told, nothing left behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

BUNDLED = Path(__file__).parents[2] / "data" / "mooncake_conversation_first1000.jsonl"


def start(*words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "kvevents", "demo", "--workers", "2", *words]
    environment = os.environ | {"KVEVENTS_CLIENT_TOKEN": "not for the demo", "KVEVENTS_ADMIN_TOKEN": "nor this"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def run(*words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, report and notes of a whole demo."""
    with start("--json", *words) as process:
        out, err = process.communicate(timeout=90)
    return process.returncode, json.loads(out) if out else {}, err


def announced(process: "subprocess.Popen[str]", until: str) -> dict[str, int]:
    """Process ids by name, from the notes up to a line that begins with `until`."""
    assert process.stderr is not None
    pids = {}
    for line in process.stderr:
        if found := re.match(r"(engine \d|router).*: http\S+ \(pid (\d+)\)", line):
            pids[found[1]] = int(found[2])
        if line.startswith(until):
            return pids
    raise AssertionError(f"no line that begins with {until!r}")


def wait_until_gone(pids: Iterable[int], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    for pid in pids:
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline, f"process {pid} is still there after {within_s} s"
            time.sleep(0.02)


def test_figures_agree_with_each_other_and_the_index_with_the_engines() -> None:
    code, report, notes = run("--limit", "40", "--speed", "20", "--dp-size", "2")
    assert code == 0
    rows = [json.loads(line) for line in BUNDLED.read_text().splitlines()[:40]]
    assert (report["requests"], report["workers"], report["dp_size"], report["differences"]) == (40, 2, 2, 0)
    assert [policy["policy"] for policy in report["policies"]] == ["round_robin", "kv"]
    for policy in report["policies"]:
        assert (policy["requests"], policy["failures"], policy["lost_engines"]) == (40, 0, [])
        assert policy["prompt_tokens"] == sum(row["input_length"] for row in rows)
        assert 0 < policy["cached_tokens"] < policy["prompt_tokens"]
        assert sum(policy["prefill_tokens"].values()) == policy["prompt_tokens"] - policy["cached_tokens"]
        assert 0 < policy["first_token_p50_s"] <= policy["first_token_p99_s"]
        ranks = policy["index"]
        assert len({(rank["worker"], rank["dp_rank"]) for rank in ranks}) == 4
        assert all(rank["blocks"] > 0 and rank["missing"] == rank["extra"] == 0 for rank in ranks)
        events = policy["events"]
        # Nothing was evicted, so what was announced is what is held.
        assert events["pages_stored"] == sum(rank["blocks"] for rank in ranks)
        assert events["pages_removed"] == 0
        assert events["pages_per_event"] >= 20
        assert events["events_after"] < events["events_before"]
        assert events["bytes_after"] < events["bytes_before"]
    assert "kv: 40 of 40 requests ended" in notes


@pytest.mark.parametrize("cache", ["radix", "hierarchical", "block_pool"])
def test_small_caches_evict_and_the_index_still_agrees(cache: str) -> None:
    code, report, _ = run(
        *("--limit", "40", "--speed", "20", "--cache", cache, "--cache-tokens", "130048", "--policy", "kv")
    )
    assert code == 0
    (policy,) = report["policies"]
    assert policy["failures"] == 0
    assert policy["events"]["pages_removed"] > 0
    assert sum(rank["blocks"] for rank in policy["index"]) > 0
    assert report["differences"] == 0


@pytest.mark.parametrize("cache", ["swa", "mamba", "unified"])
def test_engines_of_hybrid_models(cache: str) -> None:
    code, report, _ = run("--limit", "20", "--speed", "50", "--cache", cache, "--policy", "kv")
    assert code == 0
    (policy,) = report["policies"]
    assert (policy["failures"], report["differences"]) == (0, 0)
    assert policy["cached_tokens"] > 0
    # Windows and states are announced beside full attention.
    assert policy["events"]["pages_stored"] > sum(rank["blocks"] for rank in policy["index"])


def test_an_engine_that_dies_in_the_middle_is_survived_and_told() -> None:
    with start("--limit", "60", "--speed", "10", "--policy", "kv") as process:
        pids = announced(process, "kv: 12 of 60")
        os.kill(pids["engine 1"], signal.SIGKILL)
        out, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    assert re.search(r"engines lost in the middle +│ +1 ", out)
    assert re.search(rf"kv: engine 1 \(pid {pids['engine 1']}\) was ended by SIGKILL", out)
    assert len(re.findall(r"│ kv +│ 127\.0\.0\.1:\d+/0 +│", out)) == 1
    wait_until_gone(list(pids.values()), 10)


def test_a_router_that_dies_ends_the_demo() -> None:
    with start("--limit", "40", "--speed", "20", "--policy", "kv") as process:
        pids = announced(process, "kv: 8 of 40")
        os.kill(pids["router"], signal.SIGKILL)
        out, err = process.communicate(timeout=90)
    assert process.returncode == 3
    assert out == ""
    assert "kvevents: router" in err.splitlines()[-1]
    assert "was ended by SIGKILL" in err.splitlines()[-1]
    wait_until_gone(list(pids.values()), 10)


def test_a_demo_without_any_answer_has_failed() -> None:
    code, report, err = run("--limit", "2", "--speed", "30", "--cache-tokens", "640")
    assert (code, report) == (3, {})
    assert "kvevents: none of 2 requests was answered; the first: " in err.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(number: signal.Signals) -> None:
    with start("--limit", "200") as process:
        pids = announced(process, "round_robin: 40 of 200")
        assert len(pids) == 3
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in err
    wait_until_gone(list(pids.values()), 10)


def test_a_port_in_use_is_told_before_anything_is_replayed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, report, err = run("--limit", "5", "--port", str(port))
    assert (code, report) == (3, {})
    assert str(port) in err.splitlines()[-1]
    assert "Traceback" not in err


def test_broken_lines_are_named_and_skipped(tmp_path: Path) -> None:
    lines = BUNDLED.read_text().splitlines()[:120]
    lines[4] = lines[4][:-9]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(lines))
    code, report, notes = run("--trace", str(trace), "--limit", "8", "--speed", "30", "--policy", "kv")
    assert code == 0
    assert (report["requests"], report["broken_lines"]) == (8, [5])
    assert f"{trace}: line 5 is skipped: " in notes
