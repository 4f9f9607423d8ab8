"""What docs/caches.md shows runs as it stands."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = (Path(__file__).parents[2] / "docs" / "caches.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL))
def test_an_example_prints_what_its_last_line_says(example: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "docs/caches.md", "exec"), {})
    assert printed.getvalue().strip() == example.rstrip().rpartition("# ")[2]
