"""A router under load whose engines die: `PYTHONPATH=tests python -m soak --minutes 10 --out docs/soak/router.json`.

Exits with 1 when something is not as it should be.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import msgspec

from soak.run import Plan, soak


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    """Soak and write what came out of it."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the outcome here as JSON")
    asked = parser.parse_args()
    seconds = asked.minutes * 60
    warm_up_s = seconds / 5
    plan = Plan(limit_s=10, warm_up_s=warm_up_s, soak_s=seconds - warm_up_s, kill_every_s=min(60.0, seconds / 2))
    with tempfile.TemporaryDirectory() as logs:
        outcome = asyncio.run(soak(plan, Path(logs), seed=asked.seed, say=_note))
    text = msgspec.json.format(msgspec.json.encode(outcome), indent=2)
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_bytes(text + b"\n")
    sys.stdout.write(text.decode() + "\n")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
