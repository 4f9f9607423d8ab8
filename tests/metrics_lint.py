"""What Prometheus' documents ask of names and units, checked on a page of metrics."""

from collections import Counter

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

_NAMESPACES = ("kvevents_", "process_")
_WRONG_UNITS = ("_ms", "_us", "_milliseconds", "_microseconds", "_minutes", "_kb", "_mb", "_kib", "_mib", "_percent")
_UNITS = ("_seconds", "_bytes", "_tokens", "_blocks")


def parse(text: str) -> list[Metric]:
    """The families of a page."""
    return list(text_string_to_metric_families(text))


def faults(text: str) -> list[str]:
    """What is wrong with the names and samples of a page."""
    found = []
    typed: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            typed[name] = kind
            found += _name_faults(name, kind)
            if f"# HELP {name} " not in text:
                found.append(f"{name}: has no help")
    for metric in parse(text):
        if metric.type == "unknown":
            found.append(f"{metric.name}: has no type")
        twice = Counter((sample.name, *sorted(sample.labels.items())) for sample in metric.samples)
        found += [f"{key}: is there twice" for key, count in twice.items() if count > 1]
    return found


def _name_faults(name: str, kind: str) -> list[str]:
    found = []
    if not name.startswith(_NAMESPACES):
        found.append(f"{name}: has no namespace")
    if kind == "counter" and not name.endswith("_total"):
        found.append(f"{name}: a counter ends in _total")
    if kind != "counter" and name.endswith("_total"):
        found.append(f"{name}: only counters end in _total")
    if name.removesuffix("_total").endswith(_WRONG_UNITS):
        found.append(f"{name}: expected base units (seconds, bytes, ratios)")
    if kind in {"histogram", "summary"} and not name.endswith(_UNITS):
        found.append(f"{name}: expected a unit at its end")
    if name.endswith(("_bucket", "_count", "_sum", "_info")) and not (name.endswith("_info") and kind == "gauge"):
        found.append(f"{name}: its suffix is one of Prometheus' own")
    return found
