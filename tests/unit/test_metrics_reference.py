"""The tables of metrics: their page, their names, and that no figure of another part is forgotten."""

import re
from pathlib import Path

import pytest

from kvevents.index import SourceStats
from kvevents.server.access.access import AccessCounters
from kvevents.server.fleet.counters import FleetCounters
from kvevents.server.live import StreamCounters
from kvevents.server.metrics import access, index, prompts, proxy, sources, stream, truth, workers
from kvevents.server.metrics.family import Family, labels
from kvevents.server.metrics.family import histogram as histogram_family
from kvevents.server.metrics.histogram import Histogram
from kvevents.server.metrics.reference import SECTIONS, reference
from kvevents.server.prompts import PromptCounters
from kvevents.server.proxy.counters import Counters
from kvevents.server.truth import Agreement
from kvevents.transport import SourceCounters
from metrics_lint import faults, parse

ROOT = Path(__file__).parents[2]
FAMILIES = [family for families in SECTIONS.values() for family in families]
NOT_FIGURES = {"worker", "dp_rank", "state", "error", "block_size", "bigram", "last_seq"}


def test_the_page_is_made_from_the_tables() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == reference(), (
        "python -m kvevents.server.metrics.reference > docs/metrics.md"
    )


def test_each_name_is_there_once_with_meaning_and_advice() -> None:
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names))
    for family in FAMILIES:
        assert family.meaning.endswith("."), family.name
        assert family.advice.endswith("."), family.name
        assert "|" not in family.meaning + family.advice


def test_advice_names_metrics_that_exist() -> None:
    names = {family.name for family in FAMILIES}
    for family in FAMILIES:
        for named in re.findall(r"(?:kvevents|process)_[a-z_]+", family.meaning + family.advice):
            assert named in names, (family.name, named)


@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_names_keep_the_conventions(family: Family) -> None:
    assert faults(family.render(())) == []


def test_every_figure_of_sources_and_index_is_told() -> None:
    assert set(SourceCounters.__struct_fields__) == {*sources.COUNTERS, "transitions"}
    told = {*index.COUNTERS, *index.WAITING, "tiers", "blocks", "skipped"}
    assert set(SourceStats.__struct_fields__) - NOT_FIGURES == told


def test_every_figure_of_the_proxy_is_told() -> None:
    assert set(Counters.__struct_fields__) == {*proxy.COUNTERS, "rejected"}


def test_every_figure_of_prompts_and_access_is_told() -> None:
    assert set(PromptCounters.__struct_fields__) == {*prompts.COUNTERS, "read", "approximate"}
    assert set(AccessCounters.__struct_fields__) == set(access.COUNTERS)


def test_every_figure_of_the_stream_is_told() -> None:
    assert set(StreamCounters.__struct_fields__) == {*stream.COUNTERS, "readers"}


def test_every_figure_of_the_truth_check_is_told() -> None:
    assert set(Agreement.__struct_fields__) == {*truth.COUNTERS, *truth.GAUGES, "agreeing", "distrusted"}


def test_every_figure_of_the_fleet_is_told() -> None:
    assert set(FleetCounters.__struct_fields__) == set(workers.COUNTERS)


def test_labels_may_hold_anything() -> None:
    awkward = 'a "quote", a \\ and\na line'
    text = Family("kvevents_x", "gauge", ("model",), "A.", "B.").render([(labels(model=awkward), 2)])
    (family,) = parse(text)
    (sample,) = family.samples
    assert sample.labels == {"model": awkward}
    assert sample.value == 2


def test_a_histogram_counts_by_upper_ends() -> None:
    histogram = Histogram(histogram_family("wait_seconds", "A.", "B."), (0.1, 1.0))
    for value in (0.05, 0.1, 0.2, 7.0):
        histogram.observe(value)
    (family,) = parse(histogram.render())
    values = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert values == {
        ("kvevents_wait_seconds_bucket", "0.1"): 2,
        ("kvevents_wait_seconds_bucket", "1.0"): 3,
        ("kvevents_wait_seconds_bucket", "+Inf"): 4,
        ("kvevents_wait_seconds_sum", None): pytest.approx(7.35),
        ("kvevents_wait_seconds_count", None): 4,
    }


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("# HELP kvevents_x A.\n# TYPE kvevents_x counter\n", "a counter ends in _total"),
        ("# HELP kvevents_x_total A.\n# TYPE kvevents_x_total gauge\n", "only counters end in _total"),
        ("# HELP kvevents_x_ms A.\n# TYPE kvevents_x_ms gauge\n", "base units"),
        ("# TYPE kvevents_x gauge\n", "no help"),
        ("# HELP x A.\n# TYPE x gauge\n", "namespace"),
        ("# HELP kvevents_wait A.\n# TYPE kvevents_wait histogram\n", "a unit"),
        ("kvevents_x 1\n", "no type"),
        ("# HELP kvevents_x A.\n# TYPE kvevents_x gauge\nkvevents_x 1\nkvevents_x 2\n", "twice"),
    ],
)
def test_the_checks_find_what_is_wrong(wrong: str, said: str) -> None:
    assert any(said in fault for fault in faults(wrong))
