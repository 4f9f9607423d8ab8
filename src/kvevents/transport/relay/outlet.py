"""The sockets of one stream, as an engine has them."""

import zmq

from kvevents.transport.frames import sequence_frame
from kvevents.transport.relay.backlog import MOST_BATCHES, Sent
from kvevents.transport.relay.stream import Stream
from kvevents.transport.replay_server import ReplayServer, ReplayServerStats
from kvevents.transport.security import PublisherKeys
from kvevents.transport.served import open_served
from kvevents.transport.snapshot_server import SnapshotServer
from kvevents.transport.sockets import ZmqContext, bind_socket

_REPLAY_HWM = 2 * MOST_BATCHES
_LINGER_MS = 1_000


class Outlet:
    """A PUB socket for live batches, and a server of replays and snapshots.

    Made by any thread; `send` and `close` belong to one.

    Args:
        live: where to publish.
        replay: where to repeat.
        topic: what batches are published under.
        stream: what is published and repeated.
        hwm: messages queued for one slow consumer.
        context: for every transport but inproc.
        keys: who may read; the context has a `Doorkeeper` then. None: everybody.

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
        context: ZmqContext,
        keys: PublisherKeys | None = None,
    ) -> None:
        self._topic = topic.encode()
        self._snapshots = SnapshotServer(stream.snapshot, payload_of=stream.payload_of)
        self._pub = open_served(zmq.PUB, live, context, hwm=hwm, keys=keys)
        try:
            self.endpoint = bind_socket(self._pub, live)
            self._replays = ReplayServer(
                replay,
                stream,
                topic=self._topic,
                snapshots=self._snapshots,
                send_hwm=_REPLAY_HWM,
                context=context,
                linger_ms=_LINGER_MS,
                keys=keys,
            )
        except BaseException:
            self._pub.close(0)
            raise
        self.replay_endpoint = self._replays.endpoint

    def send(self, batch: Sent) -> None:
        """Publishes a batch; never waits."""
        self._pub.send_multipart((self._topic, sequence_frame(batch.sequence), batch.payload))

    def replay_stats(self) -> ReplayServerStats:
        """What was repeated; any thread may ask."""
        return self._replays.stats()

    def close(self) -> None:
        """Gives consumers a moment to take what was sent, and closes the sockets."""
        self._pub.close(_LINGER_MS)
        self._replays.close()
        self._snapshots.close()
