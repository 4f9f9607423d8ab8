"""What every command shares about its output: the `--json` flag, results on stdout, notes on stderr."""

import sys
from typing import Annotated, TypeAlias

import msgspec
from cyclopts import Parameter

Json: TypeAlias = Annotated[bool, Parameter(name="--json", negative=())]
"""Type of a command's `json` argument."""


def print_json(value: object) -> None:
    """One line of JSON on stdout, at once: a reader on the other end of a pipe sees it now."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """One line on stderr: progress, warnings, whatever is not the result."""
    print(text, file=sys.stderr, flush=True)
