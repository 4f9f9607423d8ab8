"""The Makefile says what it needs."""

import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("body", ["exit 1", None], ids=["too old", "not there"])
def test_a_python_that_will_not_do_is_named_before_anything_is_made(body: str | None, tmp_path: Path) -> None:
    python = tmp_path / "python3.10"
    if body is not None:
        python.write_text(f"#!/bin/sh\n{body}\n")
        python.chmod(0o755)
    for name in ("constraints.txt", "pyproject.toml"):
        (tmp_path / name).touch()
    made = subprocess.run(
        ["make", "-f", MAKEFILE, "setup", f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert made.returncode != 0
    assert f"{python} is not Python 3.11 or newer; name one that is: make PYTHON=python3.11" in made.stderr
    assert not (tmp_path / ".venv").exists()
