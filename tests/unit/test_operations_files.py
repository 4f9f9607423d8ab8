"""The dashboard and the alerts: valid, and about metrics that exist."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # its types would be one more package
import promql_parser
import pytest
import yaml

from kvevents.server.metrics.reference import SECTIONS

DOCS = Path(__file__).parents[2] / "docs"
FAMILIES = {family.name: family for families in SECTIONS.values() for family in families}
SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds."""

NAMES = {
    f"{family.name}{suffix}": {*family.labels, *more}
    for family in FAMILIES.values()
    for suffix, more in {
        "histogram": (("_bucket", ("le",)), ("_sum", ()), ("_count", ())),
        "summary": (("_sum", ()), ("_count", ())),
    }.get(family.kind, (("", ()),))
}
"""Every name that a query may ask for, and the labels of its series."""

TARGET = {
    "type": "object",
    "required": ["refId", "datasource", "expr", "legendFormat"],
    "properties": {"refId": {"pattern": "^[A-Z]$"}, "expr": {"type": "string", "minLength": 1}},
}
PANEL = {
    "type": "object",
    "required": ["id", "type", "title", "gridPos"],
    "properties": {
        "id": {"type": "integer"},
        "type": {"enum": ["row", "stat", "timeseries", "state-timeline"]},
        "gridPos": {
            "type": "object",
            "required": ["h", "w", "x", "y"],
            "additionalProperties": {"type": "integer", "minimum": 0},
        },
    },
    "if": {"properties": {"type": {"const": "row"}}},
    "else": {
        "required": ["description", "targets", "fieldConfig", "datasource"],
        "properties": {
            "description": {"minLength": 10},
            "targets": {"type": "array", "minItems": 1, "items": TARGET},
            "fieldConfig": {"required": ["defaults", "overrides"]},
            "datasource": {"const": {"type": "prometheus", "uid": "${datasource}"}},
        },
    },
}
DASHBOARD = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "time", "refresh"],
    "properties": {
        "uid": {"pattern": "^[a-z-]{1,40}$"},
        "schemaVersion": {"minimum": 36},
        "panels": {"type": "array", "items": PANEL},
    },
    "not": {"required": ["id"]},
}
ALERTS = {
    "type": "object",
    "required": ["groups"],
    "additionalProperties": False,
    "properties": {
        "groups": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "rules"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string"},
                    "rules": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "required": ["alert", "expr", "labels", "annotations"],
                            "additionalProperties": False,
                            "properties": {
                                "alert": {"pattern": "^Kv[A-Za-z]+$"},
                                "expr": {"type": "string"},
                                "for": {"pattern": "^[0-9]+[smhd]$"},
                                "labels": {
                                    "required": ["severity"],
                                    "properties": {"severity": {"enum": ["page", "ticket"]}},
                                },
                                "annotations": {"required": ["summary", "description"]},
                            },
                        },
                    },
                },
            },
        }
    },
}
"""The parts of both formats that are used here, as Grafana and Prometheus document them."""


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text())
    return found


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DOCS / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> list[tuple[str, str]]:
    shown = [
        (f"panel {panel['title']} {target['refId']}", target["expr"])
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]
    return shown + [(rule["alert"], rule["expr"]) for rule in alerts()]


def parse(query: str) -> promql_parser.Expr:
    """A query, with what Grafana would put in place of its variables."""
    filled = query.replace("$__rate_interval", "5m").replace("$job", "a").replace("$worker", "b")
    assert "$" not in filled
    return promql_parser.parse(filled)


def selectors(expression: object) -> Iterator[promql_parser.VectorSelector]:
    """Every series that an expression asks for."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
        return
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        inner = getattr(expression, name, None)
        if inner is not None:
            yield from selectors(inner)
    for argument in getattr(expression, "args", ()):
        yield from selectors(argument)


def groupings(query: str) -> set[str]:
    """Labels that series are put together by."""
    return {label.strip() for labels in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", query) for label in labels.split(",")}


@pytest.mark.parametrize(("where", "query"), queries(), ids=[where for where, _ in queries()])
def test_every_query_asks_for_series_that_exist(where: str, query: str) -> None:
    found = list(selectors(parse(query)))
    assert found, where
    labels = set[str]()
    for selector in found:
        assert selector.name in NAMES, (where, selector.name)
        own = NAMES[selector.name] | SCRAPED
        labels |= own
        for matcher in selector.matchers.matchers:
            assert matcher.name in own, (where, selector.name, matcher.name)
    assert groupings(query) <= labels, where


def test_a_query_for_what_does_not_exist_would_be_found() -> None:
    (selector,) = selectors(parse("sum(rate(kvevents_no_such_total[5m]))"))
    assert selector.name not in NAMES
    with pytest.raises(ValueError, match="unclosed"):
        parse("sum(rate(kvevents_requests_total[5m])")


def test_the_dashboard_is_one() -> None:
    jsonschema.validate(dashboard(), DASHBOARD)
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    text = json.dumps(dashboard())
    used = set(re.findall(r"\$\{?([a-z_]+)", text)) - {"__rate_interval"}
    assert used == variables


def test_panels_do_not_lie_over_each_other() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        assert not (
            one["x"] < other["x"] + other["w"]
            and other["x"] < one["x"] + one["w"]
            and one["y"] < other["y"] + other["h"]
            and other["y"] < one["y"] + one["h"]
        ), (one, other)


def test_legends_name_labels_that_are_left() -> None:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            left = groupings(target["expr"]) or {label for labels in NAMES.values() for label in labels} | SCRAPED
            assert named <= left, (panel["title"], target["legendFormat"])


def test_the_alerts_are_rules() -> None:
    document: Mapping[str, Any] = yaml.safe_load((DOCS / "alerts.yaml").read_text())
    jsonschema.validate(document, ALERTS)
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))


def test_alerts_name_labels_that_are_left_and_metrics_that_exist() -> None:
    for rule in alerts():
        said = " ".join(rule["annotations"].values())
        named = set(re.findall(r"\$labels\.(\w+)", said))
        left = groupings(rule["expr"]) or {label for labels in NAMES.values() for label in labels} | SCRAPED
        assert named <= left, rule["alert"]
        for metric in re.findall(r"kvevents_[a-z_]+", said):
            assert metric in FAMILIES, (rule["alert"], metric)
