"""The demo's progress and tables, and what it refuses to start with."""

import re
from pathlib import Path

import msgspec
import pytest

from kvevents import cli
from kvevents.cli.figures import print_report, remarks
from kvevents.cli.progress import PlainProgress
from kvevents.simulation.announcements import EventFigures
from kvevents.simulation.comparison import RankComparison
from kvevents.simulation.demo import DemoSettings, fleet_settings
from kvevents.simulation.replay import Outcome
from kvevents.simulation.report import DemoReport, PolicyFigures
from kvevents.simulation.traces import read_trace

BUNDLED = Path(__file__).parents[2] / "data" / "mooncake_conversation_first1000.jsonl"


def policy(name: str, cached: int) -> PolicyFigures:
    return PolicyFigures(
        policy=name,
        requests=500,
        failures=0,
        failure_reasons={},
        lost_engines=[],
        prompt_tokens=1_000_000,
        cached_tokens=cached,
        cached_share=cached / 1_000_000,
        recomputed_tokens=4321,
        first_token_p50_s=1.234,
        first_token_p90_s=2.345,
        first_token_p99_s=None,
        prefill_tokens={"w0": 10, "w1": 20},
        worst_prefill=1.25,
        sent_late_p99_s=0.01,
        kept_pace=True,
        took_s=20.0,
        events=EventFigures(5, 12_345, 0, 600, 20.575, 12_345, 600, 9_999_999, 3_333_333),
        index=[RankComparison("w0", 0, 5_000, 0, 0, 7), RankComparison("w1", 0, 6_000, 0, 0, 8)],
    )


def report(*policies: PolicyFigures) -> DemoReport:
    return DemoReport(
        trace="t.jsonl",
        broken_lines=[],
        requests=500,
        span_s=165.0,
        workers=2,
        dp_size=1,
        page_size=64,
        cache_tokens=100,
        prefill_tokens_per_s=15_900.0,
        speed=10.0,
        policies=list(policies),
        cached_gain=2.0,
        differences=0,
    )


def test_the_table_shows_every_figure_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(report(policy("round_robin", 80_000), policy("kv", 160_000)))
    out = capsys.readouterr().out
    rows = {
        name.strip(): [cell.strip() for cell in cells]
        for name, *cells in (re.split("[│┃]", line)[1:-1] for line in out.splitlines() if "│" in line or "┃" in line)
    }
    assert rows["prompt tokens found cached"] == ["8.0% (80,000)", "16.0% (160,000)"]
    assert rows["time to first token, p50"] == ["1.23 s", "1.23 s"]
    assert rows["time to first token, p99"] == ["-", "-"]
    assert rows["events sent"] == ["600 (20.6 pages a store)"] * 2
    assert rows["index against engines: blocks compared"] == ["11,000", "11,000"]
    assert rows["kv"] == ["w1/0", "6,000", "0", "0"]
    assert "kv finds 2.00 times the cached tokens of round_robin." in out


def test_remarks_name_what_went_wrong() -> None:
    kv = policy("kv", 10)
    kv.failures, kv.failure_reasons = 3, {"status 503: gone": 3}
    kv.lost_engines = ["engine 2 (pid 9) was ended by SIGKILL"]
    kv.kept_pace, kv.sent_late_p99_s = False, 2.5
    whole = report(policy("round_robin", 5), kv)
    whole.broken_lines = [7, 9]
    whole.differences = 4
    text = "\n".join(remarks(whole))
    assert "kv: engine 2 (pid 9) was ended by SIGKILL" in text
    assert "kv: 3 failed, status 503: gone" in text
    assert "does not keep pace at speed 10" in text
    assert "2.5 s of trace time" in text
    assert "Skipped 2 broken lines of the trace: 7, 9." in text
    assert "differs from the engines in 4 blocks" in text


def test_many_reasons_are_told_by_the_most_frequent() -> None:
    kv = policy("kv", 10)
    kv.failure_reasons = {f"prompt {n} is too long": 1 for n in range(40)} | {"worker w0 closed the connection": 7}
    lines = [line for line in remarks(report(kv)) if "failed" in line]
    assert len(lines) == 4
    assert lines[0] == "kv: 7 failed, worker w0 closed the connection"
    assert lines[-1] == "kv: 38 more failed for 38 other reasons (--json has all)."


def test_a_report_is_one_json_object() -> None:
    whole = report(policy("kv", 10))
    fields = msgspec.json.decode(msgspec.json.encode(whole))
    assert fields["policies"][0]["events"]["pages_per_event"] == 20.575
    assert fields["policies"][0]["index"][1] == {
        "worker": "w1",
        "dp_rank": 0,
        "blocks": 6000,
        "missing": 0,
        "extra": 0,
        "last_seq": 8,
    }


def test_plain_progress_tells_in_fifths(capsys: pytest.CaptureFixture[str]) -> None:
    progress = PlainProgress()
    progress.begin("kv", 13)
    for n in range(13):
        progress.advance(Outcome(n, 100, cached_tokens=50, error="gone" if n == 0 else None))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "kv: 13 requests"
    assert len(lines) == 6
    assert lines[-1] == "kv: 13 of 13 requests ended, 50.0% of the prompt tokens found cached, 1 failed"


def test_the_fleet_fits_the_trace() -> None:
    trace = read_trace(BUNDLED, limit=500)
    fleet = fleet_settings(DemoSettings(trace=BUNDLED), trace)
    demand = trace.prompt_tokens / 168 / 4
    assert fleet.prefill_tokens_per_s == pytest.approx(1.5 * demand)
    assert fleet.cache_tokens % 64 == 0
    assert fleet.cache_tokens >= trace.prompt_tokens + trace.output_tokens
    given = DemoSettings(trace=BUNDLED, cache_tokens=4096, prefill_tokens_per_s=7.0, dp_size=2)
    assert fleet_settings(given, trace).cache_tokens == 4096
    assert fleet_settings(given, trace).prefill_tokens_per_s == 7.0


def test_one_bucket_of_arrivals_still_has_a_demand(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 3000, "output_length": 1, "hash_ids": [1, 2, 3, 4, 5, 6]}\n')
    trace = read_trace(path)
    assert fleet_settings(DemoSettings(trace=path, workers=1), trace).prefill_tokens_per_s == pytest.approx(1500)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nonsense"], "--nonsense"),
        (["--workers", "0"], "--workers"),
        (["--speed", "0"], "--speed"),
        (["--limit", "many"], "--limit"),
        (["--policy", "psychic"], "psychic"),
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--port", "65536"], "--port"),
    ],
)
def test_wrong_usage_starts_nothing(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", *words]) == cli.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert said in captured.err


def test_without_the_repository_a_trace_has_to_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kvevents.simulation.traces.BUNDLED", Path("/nowhere/trace.jsonl"))
    assert cli.main(["demo"]) == cli.USAGE
    assert "--trace: expected a file" in capsys.readouterr().err


def test_too_many_broken_lines_stop_the_demo_with_their_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = BUNDLED.read_text().splitlines()[:50]
    lines[6] = "?"
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    assert cli.main(["demo", "--trace", str(path)]) == cli.USAGE
    assert "1 of 50 lines are broken, more than 1 %: lines 7 (line 7: " in capsys.readouterr().err
