"""How a replay goes, on stderr: a bar on a terminal, plain lines elsewhere."""

import contextlib
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kvevents.simulation.demo import Progress as DemoProgress
from kvevents.simulation.replay import Outcome

LINES = 5
"""Plain lines that tell of one replay's progress."""


class Tally:
    """Requests of a replay so far."""

    def __init__(self, policy: str, requests: int) -> None:
        self.policy = policy
        self.requests = requests
        self.ended = 0
        self.failed = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def add(self, outcome: Outcome) -> None:
        """Count a request that has ended."""
        self.ended += 1
        if outcome.error is None:
            self.prompt_tokens += outcome.prompt_tokens
            self.cached_tokens += outcome.cached_tokens
        else:
            self.failed += 1

    def __str__(self) -> str:
        share = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{share:.1%} of the prompt tokens found cached{failed}"


class PlainProgress:
    """A line for each note and for each fifth of a replay."""

    def note(self, text: str) -> None:
        """Print it."""
        print(text, file=sys.stderr, flush=True)

    def begin(self, policy: str, requests: int) -> None:
        """Count from zero."""
        self._tally = Tally(policy, requests)
        self.note(f"{policy}: {requests} requests")

    def advance(self, outcome: Outcome) -> None:
        """Print a line when another fifth has ended."""
        tally = self._tally
        tally.add(outcome)
        if tally.ended * LINES // tally.requests > (tally.ended - 1) * LINES // tally.requests:
            self.note(f"{tally.policy}: {tally.ended} of {tally.requests} requests ended, {tally}")


class BarProgress:
    """A bar for each replay."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task = TaskID(0)

    def note(self, text: str) -> None:
        """Print it above the bars."""
        self._bars.console.print(text, style="dim", highlight=False, soft_wrap=True, markup=False)

    def begin(self, policy: str, requests: int) -> None:
        """Add a bar."""
        self._tally = Tally(policy, requests)
        self._task = self._bars.add_task(policy, total=requests, tally=self._tally)

    def advance(self, outcome: Outcome) -> None:
        """Move the bar."""
        self._tally.add(outcome)
        self._bars.update(self._task, completed=self._tally.ended)


@contextlib.contextmanager
def showing_progress() -> Iterator[DemoProgress]:
    """Progress as fits stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainProgress()
        return
    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[tally]}"),
    )
    with Progress(*columns, console=console) as bars:
        yield BarProgress(bars)
