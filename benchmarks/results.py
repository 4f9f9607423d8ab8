"""Results as JSON, with what they were measured on, from which the tables in the docs are made."""

import datetime
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import kvevents

RESULTS = Path(__file__).parent / "results"


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def save(question: str, method: str, rows: list[dict[str, Any]], **versions: str) -> None:
    """Write `results/<question>.json`, the page of results anew, and the rows to stdout, a line each.

    Args:
        question: the benchmark's name.
        method: how it is measured, in words.
        rows: the figures.
        versions: of the peers.
    """
    for row in rows:
        print(json.dumps(row), flush=True)
    result = {
        "question": question,
        "method": method.strip(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {"processor": processor(), "cpus": os.cpu_count(), "system": platform.system()},
        "versions": {"kvevents": kvevents.__version__, "python": platform.python_version(), **versions},
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{question}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    from benchmarks.render import render  # noqa: PLC0415 - the page is made of what is written here

    render()
    print(f"{question}: written to {path}", file=sys.stderr)
