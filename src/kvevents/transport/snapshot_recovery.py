"""Fetches snapshots, and puts them in the picture's place.

the buffer begins above what was asked for    a snapshot, if there is one; else `degraded`
a fault that no replay can mend               a snapshot, if there is one
a snapshot is in place                        replay from its number on: the same bytes there, the same engine
"""

from kvevents.errors import WireError
from kvevents.transport.recovery import Recovery
from kvevents.transport.request import SnapshotRequest
from kvevents.transport.snapshot_client import SnapshotDownload
from kvevents.transport.state import Reason

_AGAIN_S = 0.05
"""How soon a publisher that is taking a snapshot is asked for it again."""


class SnapshotRecovery(Recovery):
    """The part of a `SequenceTracker` that has to do with snapshots."""

    def _can_ask_snapshot(self) -> bool:
        return (
            self._offers is not False
            and self._can_ask()
            and self._standing.connected
            and self._clock() >= self._next_snapshot
        )

    def _ask_snapshot(self) -> None:
        now, settings = self._clock(), self._settings
        self._count.snapshot_requests += 1
        self._next_snapshot = now + self._snapshot_retry_s
        self._snapshot_retry_s = min(2 * self._snapshot_retry_s, max(settings.retry_max_s, settings.idle_probe_s))
        self._request = SnapshotRequest(
            SnapshotDownload(settings.max_snapshot_bytes),
            deadline=now + settings.replay_timeout_s,
            gives_up=now + settings.snapshot_timeout_s,
        )
        self._effects.ask_snapshot(self._request.download.request())

    def _take_chunk(self, request: SnapshotRequest, head: bytes, chunk: bytes) -> None:
        now, download = self._clock(), request.download
        self._offers = True
        self._note_answer()
        request.deadline = now + self._settings.replay_timeout_s
        try:
            answer = download.take(head, chunk)
        except WireError as error:
            self._fail_snapshot(str(error))
            return
        if answer.status == "unavailable":
            self._fail_snapshot(answer.reason)
        elif answer.status == "preparing":
            request.deadline, request.again = now + _AGAIN_S, True
        elif not download.is_complete:
            self._effects.ask_snapshot(download.request())
        else:
            self._install(download)

    def _wait_for_snapshot(self, request: SnapshotRequest) -> None:
        """Its deadline is there: asks again, or gives up."""
        now = self._clock()
        if request.again and now < request.gives_up:
            request.again = False
            request.deadline = now + self._settings.replay_timeout_s
            self._effects.ask_snapshot(request.download.request())
            return
        self._count.timeouts += 1
        if not request.again:
            self._standing.miss_reply(self._settings.replay_timeout_s)
            self._put_off_probe()
        self._fail_snapshot("it did not come in time")

    def _install(self, download: SnapshotDownload) -> None:
        """Puts a snapshot in the picture's place, and asks for what has been published since."""
        head = download.head
        assert head is not None
        try:
            restored = self._effects.restore(download.parts(), head.sequence)
        except WireError as error:
            self._fail_snapshot(str(error))
            return
        if restored.failure is not None:
            self._offers = False  # as good as none
            if not restored.is_untouched:
                self._forget()
            self._fail_snapshot(restored.failure)
            return
        self._count.snapshots += 1
        self._picture.adopt(head.sequence, head.digest, restored.fault)
        self._vouched = None
        self._is_unproven = head.sequence is not None and head.digest is None
        self._ask(Reason.SNAPSHOT)

    def _fail_snapshot(self, reason: str) -> None:
        """Goes on without one: with a picture that is known to be incomplete, or a replay from its number or from 0."""
        self._count.snapshot_failures += 1
        self._next_snapshot = self._clock() + self._snapshot_retry_s
        self._request = None
        self.snapshot_failure = reason
        if not self._can_ask():
            self._release_held()
        elif self._picture.fault is None or self._is_behind():
            self._ask(Reason.FIRST_REPLAY if self._picture.last is None else Reason.GAP)

    def _refuse_snapshot(self) -> None:
        """The publisher answered as one that knows nothing of snapshots."""
        self._offers = False
        self._fail_snapshot("the publisher offers none")
