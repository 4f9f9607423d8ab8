"""When a rank of vLLM publishes its cache events."""

import sys

from kvevents.engine.announcer import Announcer
from kvevents.engine.scheduler import Progress


class StepAnnouncer(Announcer):
    """Publishes at the end of each step that has something to tell, and never in between.

    What is recorded while the rank is at rest (a reset) goes out with the next such step; until then it is silent.
    """

    @property
    def steps_to_report(self) -> int:
        """Any number: a row of decode steps is one without news."""
        return sys.maxsize

    def after(self, progress: Progress) -> None:  # noqa: ARG002 - every step reports
        """Publish what the step has told."""
        self.publish()

    def at_rest(self) -> None:
        """Nothing is published."""
