"""Figures over time: what is summed where, and for how long it is kept."""

import pytest

from kvevents.errors import ConfigError
from kvevents.server.dashboard import DashboardSettings
from kvevents.server.history import COLUMNS, History, Latencies


class Clock:
    """Stands where it is put."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def history(clock: Clock, **settings: int) -> History:
    return History(DashboardSettings(**settings), clock)


def column(rows: list[list[float | None]], name: str) -> list[float | None]:
    return [row[COLUMNS.index(name)] for row in rows]


def test_what_happens_counts_in_its_second_and_is_told_when_that_is_over() -> None:
    clock = Clock()
    figures = history(clock)
    figures.add("requests", 2)
    clock.now = 1000.9
    figures.add("requests", 1)
    assert figures.rows_since(0) == []
    clock.now = 1003.2
    figures.add("requests", 5)
    rows = figures.rows_since(0)
    assert column(rows, "at") == [1000, 1001, 1002]
    assert column(rows, "requests") == [3, 0, 0]
    clock.now = 1004
    assert column(figures.rows_since(1001), "requests") == [0, 5]


def test_seconds_are_summed_to_longer_buckets_and_both_are_bounded() -> None:
    clock = Clock()
    figures = history(clock, fine_buckets=20, coarse_bucket_s=10, coarse_buckets=5)
    for second in range(100):
        clock.now = 1000.0 + second
        figures.add("events", 1)
        figures.add_latency(0.1 * (1 + second % 10))
    document = figures.document()
    assert len(document["fine"]["rows"]) == 19
    coarse = document["coarse"]["rows"]
    assert column(coarse, "at") == [1050, 1060, 1070, 1080, 1090]
    assert column(coarse, "events") == [10, 10, 10, 10, 9], "the last one is still open"
    middle = column(coarse, "latency_p50_s")[0]
    assert middle is not None
    assert 0.5 <= middle <= 0.55


def test_a_long_sleep_and_a_clock_that_is_set_back_harm_nothing() -> None:
    clock = Clock()
    figures = history(clock, fine_buckets=10)
    figures.add("requests", 1)
    clock.now = 1_000_000.0
    figures.add("requests", 1)
    assert len(figures.document()["fine"]["rows"]) == 9
    clock.now = 999_000.0
    figures.add("requests", 1)
    clock.now = 1_000_001.0
    assert column(figures.rows_since(999_999), "requests") == [2]


def test_recent_sums_are_of_full_seconds() -> None:
    clock = Clock()
    figures = history(clock)
    for second in range(5):
        clock.now = 1000.0 + second
        figures.add("requests", 10**second)
        figures.add_latency(0.001 * 10**second)
    assert figures.recent(2)["requests"] == 1100
    assert figures.recent(60)["requests"] == 1111
    assert figures.recent_latencies(1).percentile(0.5) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99, 1.0])
def test_a_percentile_is_at_most_nine_percent_above_the_true_one(share: float) -> None:
    durations = [0.0003 * 1.07**step for step in range(200)]
    latencies = Latencies()
    for duration in durations:
        latencies.add(duration)
    true = durations[max(0, round(share * len(durations)) - 1)]
    assert true <= (latencies.percentile(share) or 0) <= 1.0906 * true


def test_of_nothing_there_is_no_percentile() -> None:
    assert Latencies().percentile(0.5) is None


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"dashboard.tick_s: expected more than 0, got 0"):
        DashboardSettings(tick_s=0)
