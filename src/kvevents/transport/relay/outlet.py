"""The sockets of one stream, as an engine has them."""

import zmq

from kvevents.transport.frames import END_MARK, read_request, sequence_frame
from kvevents.transport.poll_loop import PollLoop
from kvevents.transport.relay.backlog import Sent
from kvevents.transport.relay.stream import Stream
from kvevents.transport.snapshot import SNAPSHOT_MARK
from kvevents.transport.snapshot_server import SnapshotServer
from kvevents.transport.sockets import ZmqContext, bind_socket, open_socket

_REPLAY_HWM = 4 * 65_536
_LINGER_MS = 1_000
_MAX_REQUEST_BYTES = 64 << 10


class Outlet:
    """A PUB socket for live batches and a ROUTER for replays.

    Made by any thread; everything else belongs to the loop's.

    Args:
        live: where to publish.
        replay: where to repeat.
        topic: what batches are published under.
        stream: what is published; answers what is asked of the replay socket.
        hwm: messages queued for one slow consumer.
        loop: watches the ROUTER.
        context: for every transport but inproc.

    Attributes:
        endpoint: the live address in use.
        replay_endpoint: that of replays.

    Raises:
        TransportError: an address that cannot be bound.
    """

    def __init__(
        self,
        live: str,
        replay: str,
        *,
        topic: str,
        stream: Stream,
        hwm: int,
        loop: PollLoop,
        context: ZmqContext,
    ) -> None:
        self._topic = topic.encode()
        self._stream = stream
        self._loop = loop
        self._snapshots = SnapshotServer(stream.snapshot, payload_of=stream.payload_of)
        self._pub = open_socket(zmq.PUB, live, context)
        self._router = None
        try:
            self._pub.setsockopt(zmq.SNDHWM, hwm)
            self._pub.setsockopt(zmq.LINGER, _LINGER_MS)
            self.endpoint = bind_socket(self._pub, live)
            self._router = open_socket(zmq.ROUTER, replay, context)
            self._router.setsockopt(zmq.SNDHWM, _REPLAY_HWM)
            self._router.setsockopt(zmq.LINGER, _LINGER_MS)
            self._router.setsockopt(zmq.MAXMSGSIZE, _MAX_REQUEST_BYTES)
            self.replay_endpoint = bind_socket(self._router, replay)
        except BaseException:
            self.close(linger=0)
            raise

    def start(self) -> None:
        """Begins to answer."""
        assert self._router is not None
        self._loop.register(self._router, self._serve)

    def send(self, batch: Sent) -> None:
        """Publishes a batch; never waits."""
        self._pub.send_multipart((self._topic, sequence_frame(batch.sequence), batch.payload))

    def close(self, linger: int | None = None) -> None:
        """Closes the sockets."""
        self._snapshots.close()
        self._pub.close(linger)
        if self._router is not None:
            self._loop.unregister(self._router)
            self._router.close(linger)

    def _serve(self) -> None:
        """Answers one request, so that whoever asks without end holds up nothing that is live."""
        assert self._router is not None
        try:
            frames = self._router.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        is_request = len(frames) == 3 and not frames[1]
        if is_request and (answer := self._snapshots.answer(frames[2])):
            self._router.send_multipart((frames[0], b"", SNAPSHOT_MARK, *answer))
            return
        start = read_request(frames)
        if start is None:
            self._stream.note_malformed()
            return
        for sequence, payload in self._stream.since(start):
            self._router.send_multipart((frames[0], b"", self._topic, sequence_frame(sequence), payload))
        self._router.send_multipart((frames[0], b"", *END_MARK))
