"""What a fleet keeps on the broker; whoever comes first makes it."""

import base64
import contextlib

import nats.errors
import nats.js.errors
from nats.js import api

from kvevents.errors import TransportError, WireError
from kvevents.transport.jetstream.connection import AccessRefused, BrokerError, Connection
from kvevents.transport.jetstream.names import MESSAGE_ID, MessageId
from kvevents.transport.jetstream.settings import JetStreamSettings

_STREAM_MISSING = 10059
_NO_MESSAGE = 10037
_LEASES_KEPT = 2
"""The bucket forgets a record after so many leases; who reads it judges it by the lease that stands in it."""


class StreamFacts(tuple[str, int, int]):
    """A stream at one moment: when it was made (its identity), and its first and last position."""

    __slots__ = ()

    @property
    def created(self) -> str:
        """When it was made, as the broker writes it; another one with its name has another."""
        return self[0]

    @property
    def first(self) -> int:
        """The position of its oldest message; one above `last` if it is empty."""
        return self[1]

    @property
    def last(self) -> int:
        """The position of its newest message."""
        return self[2]


async def read_stream(connection: Connection, stream: str) -> StreamFacts:
    """A stream's facts.

    Raises:
        TransportError: there is none, or no answer.
    """
    said = await connection.call(f"STREAM.INFO.{stream}")
    return StreamFacts((said["created"], said["state"]["first_seq"], said["state"]["last_seq"]))


async def read_message_id(connection: Connection, stream: str, which: dict[str, object]) -> MessageId | None:
    """The id of a stored message; None if there is no such message, or its id is none of ours.

    Args:
        connection: to the broker.
        stream: its name.
        which: `{"seq": position}` or `{"last_by_subj": subject}`.

    Raises:
        TransportError: no answer.
    """
    try:
        said = await connection.call(f"STREAM.MSG.GET.{stream}", which)
    except BrokerError as error:
        if error.code == _NO_MESSAGE:
            return None
        raise
    lines = base64.b64decode(said["message"].get("hdrs", "")).decode("utf-8", "replace").split("\r\n")
    headers = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    try:
        return MessageId.read(headers.get(MESSAGE_ID))
    except WireError:
        return None


async def ensure_stream(connection: Connection, settings: JetStreamSettings) -> None:
    """Makes the fleet's stream unless it is there.

    Raises:
        AccessRefused: it is missing and may not be made.
        TransportError: the broker cannot.
    """
    names = settings.names
    try:
        await read_stream(connection, names.stream)
    except BrokerError as error:
        if error.code != _STREAM_MISSING:
            raise
    else:
        return
    config = {
        "name": names.stream,
        "subjects": [names.subjects],
        "retention": "limits",
        "discard": "old",
        "max_age": int(settings.max_age_s * 1e9),
        "max_bytes": settings.max_bytes,
        "max_msgs": -1,
        "max_consumers": -1,
        "max_msg_size": -1,
        "storage": "file" if settings.is_durable else "memory",
        "num_replicas": settings.replicas,
        "duplicate_window": int(min(settings.duplicate_window_s, settings.max_age_s) * 1e9),
        "allow_direct": True,
    }
    try:
        await connection.call(f"STREAM.CREATE.{names.stream}", config)
    except BrokerError:
        await read_stream(connection, names.stream)  # somebody else was faster; if not, this says what is wrong


async def ensure_buckets(connection: Connection, settings: JetStreamSettings) -> None:
    """Makes the fleet's registry and object store unless they are there.

    Raises:
        TransportError: the broker cannot, or we may not.
    """
    names, jetstream = settings.names, connection.jetstream
    storage = api.StorageType.FILE if settings.is_durable else api.StorageType.MEMORY
    registry = api.KeyValueConfig(
        bucket=names.registry,
        history=1,
        ttl=_LEASES_KEPT * settings.lease_s,
        storage=storage,
        replicas=settings.replicas,
    )
    snapshots = api.ObjectStoreConfig(
        bucket=names.snapshots, max_bytes=2 * settings.max_snapshot_bytes, storage=storage, replicas=settings.replicas
    )
    try:
        with contextlib.suppress(nats.js.errors.APIError):  # it is there, with other limits
            await jetstream.create_key_value(registry)
        await read_stream(connection, f"KV_{names.registry}")
        with contextlib.suppress(nats.js.errors.APIError):
            await jetstream.create_object_store(names.snapshots, snapshots)
        await read_stream(connection, f"OBJ_{names.snapshots}")
    except (nats.errors.Error, OSError) as error:
        if connection.complaint:
            raise AccessRefused(f"{connection.server}: {connection.complaint}") from None
        raise TransportError(f"{connection.server}: registry and snapshots cannot be made: {error!r}") from None
