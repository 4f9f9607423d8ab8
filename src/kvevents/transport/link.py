"""The sockets of one source, and what goes through them."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import zmq
from zmq.utils.monitor import parse_monitor_message

from kvevents.errors import ConfigError, WireError
from kvevents.transport.endpoints import Endpoint
from kvevents.transport.frames import Message
from kvevents.transport.handshake import HANDSHAKE_FAILED, explain_handshake
from kvevents.transport.picture import FINE, Position, Restored, Verdict
from kvevents.transport.poll_loop import PollLoop
from kvevents.transport.receive import receive
from kvevents.transport.replay import ReplayClient
from kvevents.transport.sequence import SequenceTracker
from kvevents.transport.settings import DeliverySettings
from kvevents.transport.sink import ApplyRun, EventSink, is_image, judge, read_report, restore_part, takes_images
from kvevents.transport.sockets import ZmqContext, ZmqSocket, bind_socket, connect_socket, no_socket, open_socket
from kvevents.transport.source import Source
from kvevents.transport.state import Fault, Reason, SourceCounters, SourceState, State, StateMachine

_log = logging.getLogger(__name__)

OnArrival: TypeAlias = Callable[[Source, bytes | None, bool], object]
"""Called with a source, the topic of what has come if there is one, and whether the replay socket brought it; what is
applied of it is applied before the next such call. (What waited for a replay to end is live then.)"""

_MESSAGES_A_TURN = 256
_RECONNECT_MS = 100
_RECONNECT_MAX_MS = 2_000
_REVIVE_S = 0.5
_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | HANDSHAKE_FAILED


class SourceLink:
    """Connects one source to the sink: a SUB socket with its monitor, a replay client, and the tracker between.

    Made by any thread; `start` and everything after it but `state` belong to the loop's thread.

    Args:
        source: what to connect.
        sink: takes the batches.
        loop: watches the sockets.
        context: for every transport but inproc.
        settings: times and limits.
        on_change: called after each change of state.
        on_arrival: called before batches that have come are judged, if it is not None.
        position: how far the source was followed before; what it said up to there is in the sink.

    Attributes:
        source: as given.
        endpoint: the live address in use.

    Raises:
        TransportError: the live socket cannot be opened.
    """

    def __init__(
        self,
        source: Source,
        sink: EventSink,
        *,
        loop: PollLoop,
        context: ZmqContext,
        settings: DeliverySettings,
        on_change: Callable[["SourceLink"], None],
        on_arrival: OnArrival | None = None,
        position: Position | None = None,
    ) -> None:
        self.source = source
        self._sink = sink
        self._apply_run: ApplyRun | None = getattr(sink, "apply_run", None)
        self._on_arrival = on_arrival
        self._loop = loop
        self._context = context
        self._settings = settings
        self._count = SourceCounters()
        action = "listening at" if source.bind else "connecting to"
        self._machine = StateMachine(self._count, lambda: on_change(self), f"{action} {source.endpoint}")
        self._tracker = SequenceTracker(
            self,
            self._machine,
            self._count,
            has_replay=source.replay_endpoint is not None,
            snapshot=source.snapshot,
            topic=source.topic.encode(),
            settings=settings,
            clock=time.monotonic,
        )
        if position is not None:
            self._tracker.resume(position)
        self._replay: ReplayClient | None = None
        if source.replay_endpoint is not None:
            self._replay = ReplayClient(
                source.replay_endpoint,
                receive_hwm=settings.receive_hwm,
                loop=loop,
                open_socket=self._open,
                on_reply=self._take_reply,
                on_snapshot=self._tracker.snapshot,
                on_malformed=self._count_malformed,
                guard=self._guard,
            )
        self._revive_at: float | None = None
        self._last_event = 0
        self._peers = 0
        self._failed_handshakes = 0
        self._handshake_fault = ""
        self._is_barred = False  # by what keys say, so that they are read anew
        self._has_logged = False
        self._named: set[int | None] = set()  # those that batches were applied to
        self._is_untouched = position is None  # the sink got nothing from this link, or was cleared since
        self._monitor: ZmqSocket | None = None
        self._sub = self._open(source.endpoint, zmq.SUB)
        try:
            self._sub.setsockopt(zmq.RCVHWM, settings.receive_hwm)
            self._sub.setsockopt(zmq.SUBSCRIBE, source.topic.encode())
            if Endpoint.parse(source.endpoint).transport != "inproc":  # which has no connections to watch
                self._monitor = self._sub.get_monitor_socket(_WATCHED)
            open_live = bind_socket if source.bind else connect_socket
            self.endpoint = open_live(self._sub, source.endpoint)
        except zmq.ZMQError as error:  # the monitor's
            self._close_sockets()
            raise no_socket(source.endpoint, error) from error
        except BaseException:
            self._close_sockets()
            raise

    def start(self) -> None:
        """Begins to receive."""
        self._loop.register(self._sub, self._guard(self._read_live))
        if self._monitor is not None:
            self._loop.register(self._monitor, self._guard(self._read_monitor))
        else:
            self._guard(self._tracker.connected)()

    def deadline(self) -> float | None:
        """When `tick` will have something to do, monotonic seconds."""
        deadline = self._tracker.deadline()
        if self._revive_at is None or deadline is None:
            return deadline if self._revive_at is None else self._revive_at
        return min(deadline, self._revive_at)

    def tick(self) -> None:
        """Ends a request that took too long, probes when it is time, connects again where ZMQ does not."""
        if self._revive_at is not None and time.monotonic() >= self._revive_at:
            self._guard(self._revive)()
        self._guard(self._tracker.tick)()

    def state(self) -> SourceState:
        """What is known about the source; any thread may ask."""
        return self._machine.snapshot(self._tracker.last_sequence)

    def close(self, *, forget: bool) -> None:
        """Closes the sockets; with `forget` the sink drops what the source holds."""
        self._close_sockets()
        if forget:
            self.clear()

    # Effects of the tracker.

    def apply(self, sequence: int, payload: bytes, /) -> Verdict:
        """Hands a batch to the sink."""
        source = self.source
        try:
            report = self._sink.apply(source.worker_id, payload, seq=sequence, dp_rank=source.dp_rank)
            if self._is_untouched and getattr(report, "ignored", None) == "duplicate":
                self.clear()  # the sink remembers an earlier life of this source
                report = self._sink.apply(source.worker_id, payload, seq=sequence, dp_rank=source.dp_rank)
        except WireError as error:
            self._count.refused += 1
            return Verdict(Fault(Reason.BATCH_REFUSED, f"batch {sequence} is broken: {error}", mendable=False))
        except Exception as error:
            self._note_failure(error, f"batch {sequence} could not be applied")
            detail = f"batch {sequence} could not be applied: {type(error).__name__}: {error}"
            return Verdict(Fault(Reason.SINK_FAILED, detail, mendable=False))
        self._is_untouched = False
        self._note_rank(report)
        return self._judge(report, sequence, payload)

    def _judge(self, report: object, sequence: int, payload: bytes) -> Verdict:
        verdict = judge(report, sequence, payload)
        if verdict is FINE:
            return verdict
        self._count.skipped += verdict.fault is not None
        if verdict.cleared:
            rank: object = getattr(report, "dp_rank", None)
            verdict = verdict._replace(rank=rank if isinstance(rank, int) else None, ranks=frozenset(self._named))
        return verdict

    def apply_run(self, batches: Sequence[tuple[int, bytes]], /) -> tuple[int, Verdict]:
        """Hands batches to the sink, in one call where it has one for that."""
        if self._apply_run is None or self._is_untouched or len(batches) == 1:
            for taken, (sequence, payload) in enumerate(batches, 1):
                verdict = self.apply(sequence, payload)
                if verdict is not FINE:
                    return taken, verdict
            return len(batches), FINE
        taken, report, ranks = self._apply_run(self.source.worker_id, batches, dp_rank=self.source.dp_rank)
        if not taken:
            return 1, self.apply(*batches[0])  # which says why it cannot be applied
        self._named.update(ranks)
        return taken, FINE if report is None else self._judge(report, *batches[taken - 1])

    def clear(self) -> None:
        """Drops what the source holds, also under ranks that only its batches named."""
        for rank in [None] if self.source.dp_rank is None else {self.source.dp_rank, *self._named}:
            try:
                self._sink.clear_worker(self.source.worker_id, rank)
            except Exception as error:
                self._note_failure(error, "what it held could not be cleared")
        self._is_untouched = True

    def restore(self, parts: Sequence[bytes | memoryview], sequence: int | None, /) -> Restored:
        """Hands a snapshot to the sink, part by part, in place of what it holds; that stays if it cannot take one."""
        if any(is_image(part) for part in parts) and not takes_images(self._sink):
            return Restored(failure=f"{type(self._sink).__name__} takes no images", is_untouched=True)
        self.clear()
        fault = None
        try:
            for part in parts:
                report = restore_part(self._sink, self.source, part, sequence)
                self._is_untouched = False
                self._note_rank(report)
                fault = fault or read_report(report, sequence, "the snapshot")
        except Exception as error:
            self._note_failure(error, "a snapshot could not be put in place")
            self.clear()
            return Restored(failure=f"{type(error).__name__}: {error}")
        self._count.skipped += fault is not None
        return Restored(fault=fault)

    def ask(self, start: int, /) -> None:
        """Sends a replay request."""
        assert self._replay is not None
        self._replay.ask(start)

    def ask_snapshot(self, request: bytes, /) -> None:
        """Sends a request for a snapshot."""
        assert self._replay is not None
        self._replay.ask_snapshot(request)

    def _note_rank(self, report: object) -> None:
        rank: object = getattr(report, "dp_rank", None)
        if isinstance(rank, int):
            self._named.add(rank)

    # Sockets.

    def _open(self, endpoint: str, kind: int) -> ZmqSocket:
        settings = self._settings
        socket = open_socket(kind, endpoint, self._context)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, settings.max_message_bytes)
        if self.source.keys is not None:
            try:
                self.source.keys.secure(socket)
            except BaseException:
                socket.close(0)
                raise
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(settings.heartbeat_s * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(settings.heartbeat_s * 3000))
        return socket

    def _close_sockets(self) -> None:
        if self._replay is not None:
            self._replay.close()
        if self._monitor is not None:
            self._loop.unregister(self._monitor)
            self._sub.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        self._loop.unregister(self._sub)
        self._sub.close(0)

    def _read_live(self) -> None:
        arrived = receive(self._sub, _MESSAGES_A_TURN)
        self._read_monitor()  # a reconnect that precedes any of these messages is known by now
        self._count.malformed += arrived.malformed
        if self._on_arrival is not None:
            self._on_arrival(self.source, arrived.topic, False)
        self._tracker.live_all(arrived.batches)

    def _read_monitor(self) -> None:
        while self._monitor is not None and _is_readable(self._monitor):
            message = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            self._note_connection(message["event"], message["value"])

    def _note_connection(self, event: int, value: int) -> None:
        if event & HANDSHAKE_FAILED:
            self._failed_handshakes += 1
            self._handshake_fault = explain_handshake(self.source, event, value)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._revive_at = None
            self._is_barred = False
            self._peers += 1
            self._tracker.connected()
        elif event == zmq.EVENT_CONNECT_RETRIED:
            if self._last_event != zmq.EVENT_DISCONNECTED:
                self._explain_connecting("nothing answers")
            if not self._is_barred:  # else ZMQ would go on with the keys that it was given first
                self._revive_at = None
        elif event == zmq.EVENT_DISCONNECTED:
            self._note_end()
        self._last_event = event

    def _note_end(self) -> None:
        """A connection is over, or a handshake."""
        if self._revive_at is None or not self._is_barred:
            self._revive_at = time.monotonic() + _REVIVE_S
        if self._failed_handshakes or not self._peers:
            self._failed_handshakes = max(0, self._failed_handshakes - 1)
            if self._handshake_fault and not self._peers:
                self._is_barred = self.source.keys is not None
                self._tracker.barred(self._handshake_fault)
            else:
                self._explain_connecting("what answers is no ZMQ publisher, or one that wants keys")
            self._handshake_fault = ""
        else:
            self._peers -= 1
            if not self._peers:
                self._tracker.disconnected()

    def _explain_connecting(self, problem: str) -> None:
        self._is_barred = False
        self._tracker.barred(None)
        if self._machine.state is State.CONNECTING:
            self._machine.move(Reason.NOT_REACHED, f"{problem} at {self.source.endpoint}")

    def _revive(self) -> None:
        """Connects anew, with keys as their files say now: ZMQ gives up on a peer that broke the protocol."""
        self._revive_at = None
        if not self.source.bind:
            with contextlib.suppress(zmq.ZMQError):  # it is gone already
                self._sub.disconnect(self.endpoint)
            if self.source.keys is not None:
                with contextlib.suppress(ConfigError):  # files that are being replaced: the next time, then
                    self.source.keys.secure(self._sub)
            connect_socket(self._sub, self.source.endpoint)

    def _take_reply(self, reply: Message | None) -> None:
        if self._on_arrival is not None:
            self._on_arrival(self.source, reply and reply.topic, reply is not None)
        if reply is None:
            self._tracker.end()
        else:
            self._tracker.reply(reply)

    def _count_malformed(self) -> None:
        self._count.malformed += 1

    # Failures.

    def _note_failure(self, error: Exception, what: str) -> None:
        self._count.failed += 1
        if not self._has_logged:
            self._has_logged = True
            _log.error("%s: %s; later failures are only counted", self.source, what, exc_info=error)

    def _guard(self, call: Callable[[], None]) -> Callable[[], None]:
        """The call, after whose failure this source is given up and the others go on."""

        def guarded() -> None:
            try:
                call()
            except Exception as error:
                self._note_failure(error, "given up after an internal error")
                self._close_sockets()
                self._revive_at = None
                self._tracker.disconnected()
                detail = f"given up: {type(error).__name__}: {error}; remove and add the source to try again"
                self._machine.move(Reason.INTERNAL_ERROR, detail)

        return guarded


def _is_readable(socket: ZmqSocket) -> bool:
    """Asked before each turn's messages and nearly always in vain: a `recv` that is refused costs twice as much."""
    events = socket.getsockopt(zmq.EVENTS)
    return isinstance(events, int) and bool(events & zmq.POLLIN)
