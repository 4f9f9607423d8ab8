"""What `kvevents serve --check` shows people."""

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from kvevents.server.configuration.check import Plan


def plan_table(plan: Plan) -> RenderableType:
    """What would run, as tables."""
    facts = Table(box=None, show_header=False)
    open_to = ("everyone on this machine", "whoever has the token")
    for name, value in (
        ("listens on", plan.url),
        ("policy", plan.policy),
        ("/v1/* is open to", open_to[plan.tokens["client"]]),
        ("the rest is open to", open_to[plan.tokens["admin"]]),
        ("workers may join from", ", ".join(plan.worker_hosts) or "nowhere"),
        ("tokenizers", ", ".join(f"{models}: {path}" for models, path in plan.tokenizers.items()) or "none"),
        *(("note", text) for text in plan.notes),
        *((name, msgspec.json.encode(value).decode()) for name, value in plan.changed.items()),
    ):
        facts.add_row(name, value)
    workers = Table(box=box.SIMPLE)
    rows = [
        {
            "worker": worker.id,
            "url": worker.url,
            "events": worker.events,
            "API key": "yes" if worker.has_api_key else "",
            "events' keys": "yes" if worker.has_keys else "",
            "role": worker.role or "",
            "requests at once": "" if worker.max_in_flight is None else str(worker.max_in_flight),
            "models": ", ".join(worker.models),
        }
        for worker in plan.workers
    ]
    heads = [head for head in (rows[0] if rows else ()) if any(row[head] for row in rows)]
    for head in heads:
        workers.add_column(head, overflow="fold")
    for row in rows:
        workers.add_row(*(row[head] for head in heads))
    return Group(facts, workers) if rows else facts
