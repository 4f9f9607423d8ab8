"""The page of results, `docs/benchmarks.md`, and the README's table of ratios, made from `benchmarks/results` alone.

python -m benchmarks.render [--check]
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import QUESTIONS, Figure, Question
from benchmarks.notes import paragraphs
from benchmarks.results import RESULTS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
README_LINES: tuple[tuple[str, str, Callable[[dict[str, Any]], float | None]], ...] = (
    ("| hash, record and encode", "record", lambda row: row.get("sglang_over_ours")),
    ("| insert a 64-page prompt", "cache", lambda row: row.get("sglang radix_over_ours", {}).get("radix")),
    ("| the same against its tree core", "cache", lambda row: row.get("sglang rust core_over_ours", {}).get("radix")),
)
"""How a line of the README's table begins, whose results it shows, and the ratio in a row; the first three rows are
those of page sizes 1, 16 and 64."""
INTRODUCTION = """\
# Benchmarks

Made by `make bench` from the files in `benchmarks/results`; do not edit. One benchmark a question; peers and floors run
beside ours, in turns, in one run. **Ratios within one run count**: the machine has other work to do as well, so that
absolute figures are for orientation. Times are medians, of the processor unless a line says otherwise.

"ratio" is what the goal is about: how many times better than the peer, or the value that should be small. Goals were
set before the code was written.
"""
COLUMNS = ("what", "ours", "peer", "floor", "ratio", "goal", "met")


def results() -> dict[str, dict[str, Any]]:
    """The results that are there, by question, those of the table of questions first."""
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    return {name: found[name] for name in [*QUESTIONS, *found] if name in found}


def page(found: dict[str, dict[str, Any]]) -> str:
    """The page as Markdown."""
    figures = {name: list(question.figures(found[name]["rows"])) for name, question in known(found)}
    lines = [INTRODUCTION]
    for name, question in known(found):
        lines += section(name, question, found[name], figures[name])
    lines += losses(figures)
    others = [name for name in found if name not in QUESTIONS]
    if others:
        lines += ["## Also measured", "", "Results without a table here: " + ", ".join(map(link, others)) + ".", ""]
    return "\n".join(lines).rstrip() + "\n"


def known(found: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Question]]:
    return ((name, question) for name, question in QUESTIONS.items() if name in found)


def section(name: str, question: Question, result: dict[str, Any], figures: list[Figure]) -> list[str]:
    machine = result["machine"]
    versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
    where = f"{machine['processor']}, {machine['cpus']} CPUs, {machine['system']}"
    method = result["method"].partition("\n")[2].strip()
    return [
        f"## {question.title}",
        "",
        *table(figures),
        "",
        f"{result['date']}; {where}; {versions}; {link(name)}.",
        "",
        "<details><summary>Method</summary>",
        "",
        method,
        "",
        "</details>",
        "",
    ]


def table(figures: list[Figure]) -> list[str]:
    """The columns that say something."""
    rows = [dict(zip(COLUMNS, (*figure[:6], verdict(figure)), strict=True)) for figure in figures]
    used = [column for column in COLUMNS if any(row[column] for row in rows)]
    return [
        "| " + " | ".join(used) + " |",
        "|" + "---|" * len(used),
        *("| " + " | ".join(row[column] for column in used) + " |" for row in rows),
    ]


def verdict(figure: Figure) -> str:
    return "" if figure.met is None else "yes" if figure.met else "**no**"


def losses(figures: dict[str, list[Figure]]) -> list[str]:
    """Goals that are missed and peers that do better, with what is known about it."""
    lines = ["## Where we lose", ""]
    for name, of in figures.items():
        missed = [figure for figure in of if figure.met is False or figure.loses]
        lines += [f"- {figure.what}: {figure.ratio}{missing(figure)}" for figure in missed]
        if missed:
            lines += [f"  - {note}" for note in paragraphs(name)]
    if len(lines) == 2:
        lines.append("Nowhere among the figures above.")
    return [*lines, ""]


def missing(figure: Figure) -> str:
    goal = f", the goal is {figure.goal}" if figure.met is False else ""
    return f"{goal}; {figure.peer} does better" if figure.loses else goal


def link(name: str) -> str:
    return f"[{name}.json](../benchmarks/results/{name}.json)"


def readme(text: str, found: dict[str, dict[str, Any]]) -> str:
    """The README with our figures of today in the lines of its table."""
    lines = text.splitlines(keepends=True)
    for place, line in enumerate(lines):
        label = line.split(" | ")[0]
        for start, name, ratio in README_LINES:
            if label.startswith(start) and name in found:
                values = [ratio(row) for row in found[name]["rows"][:3]]
                cells = ["not measured" if value is None else f"{value:.1f} x" for value in values]
                lines[place] = " | ".join([label, *cells]) + " |\n"
    return "".join(lines)


def render(*, write: bool = True) -> bool:
    """Make the page and the README's table; whether they were up to date."""
    found = results()
    texts = {PAGE: page(found), README: readme(README.read_text("utf-8"), found)}
    fresh = all(path.exists() and path.read_text("utf-8") == text for path, text in texts.items())
    if write:
        PAGE.parent.mkdir(exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    return fresh


def main() -> int:
    parser = argparse.ArgumentParser(prog="render", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if they are not up to date")
    options = parser.parse_args()
    fresh = render(write=not options.check)
    if options.check and not fresh:
        print(
            "docs/benchmarks.md or the README's table is not what `python -m benchmarks.render` makes", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
