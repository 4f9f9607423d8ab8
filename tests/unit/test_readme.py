"""The README is short; what it shows runs (test_docs_blocks.py)."""

from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_it_stays_short() -> None:
    assert len(README.splitlines()) <= 150
