"""`kvevents relay`: what it understands, refuses, and tells."""

from typing import Any

import pytest

from kvevents.cli import main
from kvevents.cli.duration import read_duration
from kvevents.cli.relay import _tell_rates
from kvevents.transport.relay import RelayStats, StreamStats
from kvevents.transport.relay.stats import StreamState


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20ms", 0.02), ("1.5s", 1.5), ("10m", 600.0), ("2 h", 7200.0), ("500us", 0.0005), (".5s", 0.5)],
)
def test_a_time_has_a_unit(text: str, seconds: float) -> None:
    assert read_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["20", "ms", "-1s", "1e3s", "20 ms x", "", "nan s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as 20ms"):
        read_duration(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the URL or the socket of at least one engine"),
        (["http://127.0.0.1:1", "--source-replay", "tcp://127.0.0.1:2"], "leave them out"),
        (["tcp://127.0.0.1:1", "--window", "20"], "expected a time"),
        (["tcp://127.0.0.1:1", "--window", "61s"], "window: expected 0 to 60 seconds"),
        (["tcp://127.0.0.1:1", "--coalesce", "much"], "much"),
        (["udp://127.0.0.1:1"], "expected tcp://host:port"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["relay", *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def stats(**counts: int) -> RelayStats:
    return RelayStats([StreamState("w", None, "live", "", None, None, 0, 0, 0, StreamStats(**counts))])


def test_rates_say_what_was_saved_and_what_was_lost(capsys: pytest.CaptureFixture[str]) -> None:
    before = _tell_rates(stats(received=10), StreamStats(), 10.0, json=False)
    now = stats(received=210, received_bytes=5_000_000, sent=20, sent_bytes=2_000_000, gaps=1, missing=7)
    after = _tell_rates(now, before, 10.0, json=False)
    assert after.missing == 7
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "1 batches/s and 0.00 MB/s in; none out"
    assert lines[1] == "20 batches/s and 0.50 MB/s in; 10.0 times fewer batches, 2.5 times fewer bytes"
    assert lines[2:] == ["gaps: 1 more, 1 in all", "missing: 7 more, 7 in all"]
    _tell_rates(now, after, 10.0, json=False)
    assert capsys.readouterr().err == "", "nothing happened"


def test_as_json_all_counts_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    _tell_rates(stats(received=3), StreamStats(), 10.0, json=True)
    out: Any = capsys.readouterr().out
    assert '"received":3' in out
