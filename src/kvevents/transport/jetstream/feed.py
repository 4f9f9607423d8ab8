"""Messages of a stream in their order, without holes: a push consumer with flow control, gone when its reader is."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Self, TypeAlias

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from kvevents.transport.jetstream.connection import Connection

_SILENT_HEARTBEATS = 3
_PROBE_S = 1.0
_PENDING_BYTES = 256 << 20
_ACK_TOKENS = 9
_LAST_EACH = "last_per_subject"


class Delivery(NamedTuple):
    """A stored message.

    Attributes:
        subject: what it was published to.
        data: its payload.
        headers: its headers.
        position: its number in the stream, from 1.
        pending: how many follow it at the moment.
    """

    subject: str
    data: bytes
    headers: dict[str, str]
    position: int
    pending: int


OnDelivery: TypeAlias = Callable[[Delivery], Awaitable[None]]


def read_place(reply: str) -> tuple[int, int, int] | None:
    """Position in the stream, number among the consumer's deliveries, and messages to come, from a reply subject.

    Brokers write `$JS.ACK.<stream>.<consumer>.<delivered>.<position>.<number>.<time>.<pending>`, some with domain and
    account before the stream and a token at the end. None: it is none of these.
    """
    tokens = reply.split(".")
    if len(tokens) > _ACK_TOKENS:
        tokens = tokens[2 : _ACK_TOKENS + 2]
    if len(tokens) != _ACK_TOKENS or not (tokens[5].isdecimal() and tokens[6].isdecimal() and tokens[8].isdecimal()):
        return None
    return int(tokens[5]), int(tokens[6]), int(tokens[8])


class Feed:
    """Follows a stream from a place on. A delivery that is missing, or silence, gives the connection up.

    The next delivery is handed on when the callback has returned, and the broker waits for what is not handed on yet.

    Attributes:
        pending: how many messages there were to come when it began.
    """

    def __init__(self, connection: Connection, stream: str, on_delivery: OnDelivery, heartbeat_s: float) -> None:
        self.pending = 0
        self._connection = connection
        self._stream = stream
        self._on_delivery = on_delivery
        self._heartbeat_s = heartbeat_s
        self._delivered = 0
        self._heard = time.monotonic()
        self._subscription: Subscription | None = None
        self._consumer = ""
        self._is_busy = False
        self._stuck_at: int | None = None
        self._next_probe = time.monotonic() + _PROBE_S

    @classmethod
    async def open(
        cls,
        connection: Connection,
        stream: str,
        on_delivery: OnDelivery,
        *,
        heartbeat_s: float,
        start: int | None = None,
        subject: str | None = None,
    ) -> Self:
        """Begins to follow.

        Args:
            connection: to the broker.
            stream: its name.
            on_delivery: called with each message, one after the other.
            heartbeat_s: how often the broker says that it lives.
            start: the first position; None: the last message of each subject, and what follows.
            subject: only this one.

        Raises:
            TransportError: the broker does not do it.
        """
        feed = cls(connection, stream, on_delivery, heartbeat_s)
        inbox = connection.client.new_inbox()
        feed._subscription = await connection.client.subscribe(
            inbox, cb=feed._on_message, pending_msgs_limit=0, pending_bytes_limit=_PENDING_BYTES
        )
        config: dict[str, object] = {
            "deliver_subject": inbox,
            "deliver_policy": _LAST_EACH if start is None else "by_start_sequence",
            "ack_policy": "none",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": int(heartbeat_s * 1e9),
            "mem_storage": True,
            "num_replicas": 1,
        }
        if start is not None:
            config["opt_start_seq"] = max(1, start)
        if subject is not None or start is None:
            config["filter_subject"] = subject or ">"
        said = await connection.call(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        feed.pending = said.get("num_pending", 0)
        feed._consumer = said["name"]
        return feed

    async def check(self) -> None:
        """Gives the connection up if the broker is silent, or has messages that it does not deliver.

        The latter was seen of nats-server 2.9: a consumer that is made while the stream gets its first message may
        never be told of it, though it lives and sends heartbeats.

        Raises:
            TransportError: the broker does not know the consumer any more.
        """
        now = time.monotonic()
        if self._is_busy or self._connection.closed.is_set():
            return
        silence = now - self._heard
        if silence > _SILENT_HEARTBEATS * self._heartbeat_s:
            self._connection.fail(f"{self._connection.server}: the broker has said nothing for {silence:.1f} s")
        elif now >= self._next_probe:
            self._next_probe = now + _PROBE_S
            await self._probe()

    async def wait(self, event: asyncio.Event) -> None:
        """Waits for something that a delivery will bring, and looks after the broker meanwhile.

        Raises:
            TransportError: as `check`.
        """
        while not event.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), _PROBE_S)
            await self.check()

    async def _probe(self) -> None:
        before = self._delivered
        said = await self._connection.call(f"CONSUMER.INFO.{self._stream}.{self._consumer}")
        if not said["num_pending"] or self._delivered != before or self._is_busy:
            self._stuck_at = None
        elif self._stuck_at == before:
            self._connection.fail(
                f"{self._connection.server}: {said['num_pending']} messages of {self._stream} are not delivered"
            )
        else:
            self._stuck_at = before  # they may be on their way

    async def close(self) -> None:
        """Ends it; the broker forgets the consumer."""
        if self._subscription is not None:
            await self._subscription.unsubscribe()
            self._subscription = None

    async def _on_message(self, message: Msg) -> None:
        self._heard = time.monotonic()
        headers = message.headers or {}
        if "Status" in headers:
            await self._on_status(headers, message.reply)
            return
        place = read_place(message.reply)
        if place is None:
            return
        position, delivered, pending = place
        if delivered != self._delivered + 1:
            self._miss(delivered - 1)
            return
        self._delivered = delivered
        self._is_busy = True
        try:
            await self._on_delivery(Delivery(message.subject, message.data, headers, position, pending))
        except Exception as error:
            self._connection.fail(f"message {position} of {self._stream} could not be taken: {error!r}")
        finally:
            self._is_busy = False
            self._heard = time.monotonic()  # however long that took

    async def _on_status(self, headers: dict[str, str], reply: str) -> None:
        answer = reply or headers.get("Nats-Consumer-Stalled")
        if answer:  # everything before this message has been handed on
            await self._connection.client.publish(answer)
        last = headers.get("Nats-Last-Consumer")
        if last is not None and int(last) != self._delivered:
            self._miss(int(last))

    def _miss(self, delivered: int) -> None:
        self._connection.fail(
            f"{self._connection.server}: deliveries {self._delivered + 1} to {delivered} of {self._stream} are missing"
        )
