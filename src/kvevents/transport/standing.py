"""Where facts about a source become its state."""

from kvevents.transport.picture import Picture
from kvevents.transport.request import ReplayRequest, SnapshotRequest
from kvevents.transport.state import TRANSITIONS, Fault, Reason, State, StateMachine

_DEAF_PROBES = 3
"""Probes that bring something while nothing comes live, before that is taken for more than bad luck."""
_CALM_PROBES = 3
"""Probes in a row that bring nothing, before that is forgotten."""


class Standing:
    """What is known about a source's sockets, and with the picture the state that follows from it.

    Args:
        machine: where the state is kept.
        has_replay: whether there is a replay socket.
        topic: the prefix subscribed to.

    Attributes:
        connected: whether the live socket has a publisher.
        silent: set while the replay socket does not answer.
        deaf: set while the live socket brings nothing although the replay socket shows that it should.
        unconfirmed: set while a new incarnation is known from the replay socket only, though the connection held.
        barred: set while the publisher and this side cannot agree on keys.
        expired: the publisher has been gone for so long that what it held was dropped.
    """

    def __init__(self, machine: StateMachine, *, has_replay: bool, topic: bytes) -> None:
        self.connected = False
        self.silent: Fault | None = None
        self.deaf: Fault | None = None
        self.unconfirmed: Fault | None = None
        self.barred: str | None = None
        self.expired = False
        self._machine = machine
        self._has_replay = has_replay
        self._topic = topic
        self._was_connected = False
        self._deaf_probes = self._calm_probes = 0

    def connect(self) -> bool:
        """There is a publisher; whether there was one before."""
        before = self._was_connected
        self.connected = self._was_connected = True
        self.silent = self.unconfirmed = self.barred = None
        self.expired = False
        self.hear_live()
        return before

    def hear_live(self) -> None:
        """The live socket brings something."""
        self.deaf = None
        self._deaf_probes = self._calm_probes = 0

    def compare_topic(self, topic: bytes) -> None:
        """A reply names the topic that batches are published under."""
        if not topic.startswith(self._topic):
            self.deaf = Fault(
                Reason.TOPIC_MISMATCH,
                f"subscribed to topic {_name(self._topic)}, but the publisher uses {_name(topic)}:"
                " nothing arrives live; set the source's topic",
                mendable=False,
            )

    def note_probe(self, *, found: bool, heard_live: bool) -> None:
        """A probe brought batches that the live socket had not, or it had all; again and again is no accident."""
        if heard_live:
            return
        if found:
            self._deaf_probes, self._calm_probes = self._deaf_probes + 1, 0
        else:
            self._calm_probes += 1
        if self._deaf_probes >= _DEAF_PROBES and self.deaf is None:
            self.deaf = Fault(
                Reason.NOTHING_LIVE,
                "connected, but batches come through the replay socket only: check the live endpoint and the topic",
                mendable=False,
            )
        if self._calm_probes >= _CALM_PROBES:
            self._deaf_probes = 0
            if self.deaf is not None and self.deaf.reason is Reason.NOTHING_LIVE:
                self.deaf = None  # nothing is missing, and perhaps nothing was sent

    def doubt_restart(self) -> None:
        """The replay socket speaks of another incarnation than the live socket, over which no connection broke."""
        self.unconfirmed = Fault(
            Reason.RESTART_UNCONFIRMED,
            "the replay socket does not know what came live over this connection: the engine was started anew behind"
            " a proxy, or the replay endpoint is another engine's; the next live batch will tell",
            mendable=False,
        )

    def miss_reply(self, timeout_s: float) -> None:
        """A replay request was not answered in time."""
        self.silent = Fault(
            Reason.REPLAY_SILENT,
            f"the replay socket did not answer within {timeout_s:g} s:"
            " a lost batch would go unnoticed; check the replay endpoint",
            mendable=False,
        )

    def show(self, picture: Picture, request: ReplayRequest | SnapshotRequest | None) -> None:
        """Moves the machine to the state that follows from everything known."""
        if self.connected:
            cause, detail = self._cause(picture, request)
            if (self._machine.state, cause) not in TRANSITIONS:
                self._machine.move(Reason.RECONNECTED, "reached again")
            self._machine.move(cause, detail)
        elif self._was_connected and self.expired:
            self._machine.move(Reason.LEASE_EXPIRED, "gone for so long that what it held was dropped")
        elif self.barred is not None and self._machine.state in {State.CONNECTING, State.LOST}:
            is_new = self._machine.state is State.CONNECTING
            self._machine.move(Reason.HANDSHAKE_FAILED if is_new else Reason.KEYS_CHANGED, self.barred)
        elif self._was_connected:
            self._machine.move(Reason.CONNECTION_LOST, "the connection broke; trying to reach it again")

    def _cause(self, picture: Picture, request: ReplayRequest | SnapshotRequest | None) -> tuple[Reason, str]:
        """Why a source that is connected is in its state."""
        recovering = None if request is None or request.is_probe else request
        fault = picture.fault or (None if recovering else self.silent or self.deaf or self.unconfirmed)
        if fault is not None:
            return fault.reason, fault.detail
        if recovering is not None:
            return recovering.purpose, recovering.detail
        if picture.last is None and not self._has_replay:
            return Reason.FIRST_BATCH_AWAITED, "connected; without a replay endpoint nothing is known before a batch"
        return Reason.COMPLETE, "nothing is missing"


def _name(topic: bytes) -> str:
    return repr(topic.decode("utf-8", "replace"))
