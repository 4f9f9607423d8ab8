"""`docs/metrics.md`, made from the tables: `python -m kvevents.server.metrics.reference > docs/metrics.md`."""

import sys
from collections.abc import Iterable, Mapping

from kvevents.server.metrics import (
    access,
    cached,
    index,
    process,
    prompts,
    proxy,
    requests,
    sources,
    stream,
    truth,
    workers,
)
from kvevents.server.metrics.family import Family

SECTIONS: Mapping[str, Iterable[Family]] = {
    "Requests": requests.FAMILIES,
    "Connections, queue and refusals": proxy.FAMILIES,
    "Prompts": prompts.FAMILIES,
    "What was found cached": cached.FAMILIES,
    "The truth check": truth.FAMILIES,
    "Workers": workers.FAMILIES,
    "Event sources": sources.FAMILIES,
    "The index": index.FAMILIES,
    "The page's stream": stream.FAMILIES,
    "Access": access.FAMILIES,
    "The router's process": process.FAMILIES,
}
"""Every metric there is."""

_INTRODUCTION = """\
# Metrics of the router

`GET /metrics` has them in Prometheus' text format; it takes the admin token. This page is made from the tables in
`src/kvevents/server/metrics`, and a test holds both together. `docs/grafana.json` is a dashboard over them,
`docs/alerts.yaml` has rules that wake somebody up.

Labels are bounded: `worker` and `rank` are those of the fleet, and those of a worker that was removed vanish; `model`
is one that a worker serves, else `other`; the others come from short lists. No label has anything of a prompt in it.

The hit rate is not a metric but a quotient:
`rate(kvevents_policy_reported_cached_tokens_total[5m]) / rate(kvevents_policy_reported_prompt_tokens_total[5m])`.
"""


def reference() -> str:
    """The page."""
    lines = [_INTRODUCTION]
    for title, families in SECTIONS.items():
        lines += [f"## {title}", "", "| metric | meaning | when it moves |", "|---|---|---|"]
        for family in families:
            labels = f"{{{', '.join(family.labels)}}}" if family.labels else ""
            lines.append(f"| `{family.name}{labels}` ({family.kind}) | {family.meaning} | {family.advice} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(reference())
