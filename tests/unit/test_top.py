"""What `kvevents top` makes of figures; tests/integration/test_top.py has the screen."""

from collections.abc import Callable

import pytest

from kvevents import cli
from kvevents.errors import TransportError
from kvevents.top import Picture, RouterFeed, Row, Trend
from kvevents.top.picture import state_news

ROW = Row("w", 0, "live", "complete", {"GPU": 5}, events=10, blocks=40)


def row(**changed: object) -> Row:
    return Row(**{**{name: getattr(ROW, name) for name in Row.__struct_fields__}, **changed})


def test_rates_are_what_moved_between_two_looks() -> None:
    trend = Trend()
    (first,) = trend.of(Picture(100.0, [ROW]))
    assert (first.events_per_s, first.blocks_per_s, first.blocks_per_event) == (0.0, 0.0, 4.0)
    (second,) = trend.of(Picture(102.0, [row(events=14, blocks=80)]))
    assert (second.events_per_s, second.blocks_per_s, second.blocks_per_event) == (2.0, 20.0, 10.0)
    (still,) = trend.of(Picture(103.0, [row(events=14, blocks=80)]))
    assert (still.events_per_s, still.blocks_per_event) == (0.0, 80 / 14)


def test_counts_that_fell_have_begun_anew() -> None:
    trend = Trend()
    trend.of(Picture(0.0, [ROW]))
    (shown,) = trend.of(Picture(2.0, [row(events=2, blocks=6)]))
    assert (shown.events_per_s, shown.blocks_per_s) == (1.0, 3.0)


def test_nothing_told_has_no_ratio() -> None:
    (shown,) = Trend().of(Picture(0.0, [Row("w", 0, "live", "")]))
    assert shown.blocks_per_event is None


def test_news_are_changes_of_state_losses_and_who_has_gone() -> None:
    known: dict[tuple[str, int], Row] = {}
    assert state_news([ROW], known) == ["w/0 is live: complete"]
    assert state_news([ROW], known) == []
    worse = row(state="degraded", reason="batches were lost", gaps=1, missing=3)
    assert state_news([worse], known) == ["w/0 is degraded: batches were lost", "w/0 lost 3 batches for good"]
    assert state_news([row(state="degraded", gaps=2, missing=3)], known) == ["w/0 had a gap in its stream"]
    assert state_news([], known) == ["w/0 has gone"]


STATS = b"""{"workers": [
  {"id": "a", "state": "live", "up": true, "ranks": [{"dp_rank": 0}],
   "sources": [{"dp_rank": 0, "state": "live", "reason": "ok", "last_sequence": 7, "counters": {"gaps": 2}}]},
  {"id": "b", "state": "down", "state_reason": "no answer", "up": false, "ranks": [{"dp_rank": 0}],
   "sources": [{"dp_rank": 0, "state": "lost", "reason": "gone"}]},
  {"id": "c", "state": "blind", "state_reason": "no events", "up": true, "ranks": [{"dp_rank": 0}], "sources": []}],
 "index": {"sources": [{"worker": "a", "dp_rank": null, "tiers": {"GPU": 3}, "events": 2, "stored": 4,
  "removed": 1}]}}"""


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def answer(body: bytes) -> None:
        monkeypatch.setattr("kvevents.top.router.fetch", lambda *_, **__: body)

    return answer


def test_a_routers_workers_are_as_it_sees_them(answer: Callable[[bytes], None]) -> None:
    answer(STATS)
    a, b, c = RouterFeed("http://127.0.0.1:8080").look().rows
    assert a == Row("a", 0, "live", "ok", {"GPU": 3}, events=2, blocks=5, gaps=2, last_sequence=7)
    assert (b.state, b.reason) == ("down", "no answer")
    assert (c.state, c.reason, c.last_sequence) == ("blind", "no events", None)


def test_what_is_no_router_is_said(answer: Callable[[bytes], None]) -> None:
    answer(b"{}")
    with pytest.raises(TransportError, match="expected a router's figures"):
        RouterFeed("http://127.0.0.1:8080").look()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "expected the URL of a worker"),
        (["http://127.0.0.1:9", "--router", "http://127.0.0.1:9"], "got both"),
        (["http://127.0.0.1:9", "--count", "2"], "expected --json with it"),
    ],
)
def test_wrong_arguments_are_usage_errors(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", *words]) == cli.USAGE
    assert said in capsys.readouterr().err


def test_a_missing_extra_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvevents.cli.top.find_spec", lambda _name: None)
    assert cli.main(["top", "http://127.0.0.1:9"]) == cli.USAGE
    assert "pip install 'kvevents[top]'" in capsys.readouterr().err


def test_a_router_that_does_not_answer_is_the_other_side_failing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--router", "http://127.0.0.1:9"]) == cli.OTHER_SIDE_FAILED
    assert "127.0.0.1:9" in capsys.readouterr().err
