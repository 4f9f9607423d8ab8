"""Many rounds of chaos: `PYTHONPATH=tests python -m chaos --rounds 200 --out docs/soak/chaos.json`.

Exits with 1 when a round failed; the same seeds draw the same faults.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
from pathlib import Path

import msgspec

from chaos.fleet import Fleet
from chaos.rounds import Round, run_round
from kvevents import __version__


async def _run(first: int, number: int, logs: Path) -> tuple[list[Round], int]:
    done = []
    async with Fleet(logs, random.Random(first)) as fleet:
        for seed in range(first, first + number):
            one = await run_round(fleet, seed)
            done.append(one)
            _note(f"{seed - first + 1}/{number}: right again after {one.healed_s:.1f} s; {'; '.join(one.faults)}")
            for failure in one.failures:
                _note(f"  FAILED {failure}")
        return done, fleet.observer.looks


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    """Run rounds and write what happened."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--out", type=Path, help="write the outcome here as JSON")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as logs:
        done, looks = asyncio.run(_run(asked.seed, asked.rounds, Path(logs)))
    healed = sorted(one.healed_s for one in done)
    outcome = {
        "version": __version__,
        "rounds": len(done),
        "failed": [one.seed for one in done if one.failures],
        "faults": sum(len(one.faults) for one in done),
        "live_pictures_judged": looks,
        "healed_median_s": round(statistics.median(healed), 2),
        "healed_max_s": round(healed[-1], 2),
        "each": done,
    }
    text = msgspec.json.format(msgspec.json.encode(outcome), indent=2)
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_bytes(text + b"\n")
    sys.stdout.write(msgspec.json.encode({**outcome, "each": len(done)}).decode() + "\n")
    return 1 if outcome["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
