"""Measuring on a machine that others use too: contestants in turns, medians, ratios within one run."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def alternate(contestants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each contestant; each runs once a round, so that all see the same noise."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            gc.collect()
            start = time.process_time()
            kept = run()
            times[name].append(time.process_time() - start)
            del kept
    return {name: statistics.median(runs) for name, runs in times.items()}


def latencies(call: Callable[[Any], Any], arguments: list[Any], count: int) -> list[float]:
    """Seconds that each of `count` calls took, sorted; the arguments in turns.

    Between calls the GIL is free for a moment, as it is in a server that waits for its next request: otherwise no
    other thread would get anything done.
    """
    clock = time.perf_counter
    times = []
    for index in range(count):
        argument = arguments[index % len(arguments)]
        time.sleep(0)
        start = clock()
        call(argument)
        times.append(clock() - start)
    return sorted(times)


def percentile(times: list[float], percent: float) -> float:
    """Of sorted times."""
    return times[min(len(times) - 1, int(len(times) * percent / 100))]


def resident_bytes() -> int:
    """Resident memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024
