"""What is said about speed is what was measured."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_and_the_readme_are_what_the_committed_results_give() -> None:
    check = [sys.executable, "-m", "benchmarks.render", "--check"]
    run = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
