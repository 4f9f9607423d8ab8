"""What the README shows runs as it stands."""

import contextlib
import io
import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_example_runs_and_prints_what_its_comment_says() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {})
    expected = example.rstrip().rpartition("# ")[2]
    assert printed.getvalue().strip() == expected == "worker-a 3"


def test_it_stays_short() -> None:
    assert len(README.splitlines()) <= 150
