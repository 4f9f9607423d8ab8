"""Every benchmark in turn, each in a process of its own.

python -m benchmarks [NAME ...]
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent


def questions() -> list[str]:
    """The modules that can be run: those with a `main`."""
    modules = sorted(FOLDER.glob("*.py"))
    return [path.stem for path in modules if "\ndef main() -> None:" in path.read_text("utf-8")]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(questions())}; by default all of them")
    names = parser.parse_args().names or questions()
    if unknown := sorted(set(names) - set(questions())):
        parser.error(f"expected some of {', '.join(questions())}, got {', '.join(unknown)}")
    failed = []
    started = time.monotonic()
    for number, name in enumerate(names, 1):
        print(f"[{number}/{len(names)}] {name}, {time.monotonic() - started:.0f} s after the start", file=sys.stderr)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=FOLDER.parent, check=False).returncode:
            failed.append(name)
    print(f"done after {time.monotonic() - started:.0f} s", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
