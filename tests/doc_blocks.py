"""The code blocks of README and docs/, fenced and indented."""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]

LIVE = "127.0.0.1:30000"
"""A Python block that names this address runs with an engine there."""

BROKER = "nats://broker:4222"
"""The same with a broker."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:\A|\n)\n((?:    \S.*\n(?:\n(?=    ))?)+)")
_SEPARATORS = re.compile(r"[;&|()<>]+")


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        page: its file, from the repository's root.
        line: where it begins.
        language: as its fence says; empty for one that is indented.
        text: what is in it.
    """

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_live(self) -> bool:
        """Whether it needs an engine, or a broker."""
        return LIVE in self.text or BROKER in self.text


def blocks(*languages: str) -> list[Block]:
    """All blocks in these languages."""
    return [block for page in PAGES for block in _blocks(page) if block.language in languages]


def commands(block: Block) -> Iterator[list[str]]:
    """The words after `kvevents` of each such command in a block of shell."""
    lexer = shlex.shlex(block.text.replace("\\\n", " ").replace("\n", "\n; "), posix=True, punctuation_chars=True)
    lexer.commenters = "#"
    lexer.whitespace_split = True
    words: list[str] = []
    for token in [*lexer, ";"]:
        if _SEPARATORS.fullmatch(token):
            while words and (re.fullmatch(r"[A-Z_]+=.*", words[0]) or words[0] in {"exec", "$"}):
                words = words[1:]
            if words and words[0] == "kvevents":
                yield words[1:]
            words = []
        else:
            words.append(token)


def run_python(block: Block, names: dict[str, Any], text: str | None = None) -> None:
    """Run a block; what it prints has to be what its comments after `print` say, where they say anything."""
    source = block.text if text is None else text
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * block.line + source, block.page, "exec"), names)
    expected = _expected(source)
    if expected:
        assert printed.getvalue().splitlines() == expected


def close(names: dict[str, Any]) -> None:
    """Close what a page's blocks have left open, the last first."""
    for value in reversed(list(names.values())):
        if callable(getattr(value, "close", None)) and not isinstance(value, type):
            value.close()


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    for found in _FENCE.finditer(text):
        yield Block(name, text.count("\n", 0, found.start()) + 1, found[1], found[2])
    without = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    for found in _INDENTED.finditer(without):
        lines = "".join(line.removeprefix("    ") for line in found[1].splitlines(keepends=True))
        yield Block(name, without.count("\n", 0, found.start(1)) + 1, "", lines)


def _expected(source: str) -> list[str]:
    lines = source.rstrip().splitlines()
    after = [found[1] for line in lines if (found := re.match(r"\s*print\(.*\)  # (.*)", line))]
    last: list[str] = []
    while lines and lines[-1].startswith("# "):
        last.insert(0, lines.pop().removeprefix("# "))
    return after + last
