"""What a fleet keeps on the broker; whoever comes first makes it."""

import asyncio
import base64
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import NamedTuple

import nats.errors
from nats.aio.msg import Msg
from nats.js import api

from kvevents.errors import TransportError, WireError
from kvevents.transport.jetstream.connection import AccessRefused, BrokerError, Connection
from kvevents.transport.jetstream.names import MESSAGE_ID, MessageId
from kvevents.transport.jetstream.settings import JetStreamSettings

_STREAM_MISSING = 10059
_NO_MESSAGE = 10037
_ELECTION_S = 0.2
_TAKEN = "0"
_LEASES_KEPT = 2
"""The bucket forgets a record after so many leases; who reads it judges it by the lease that stands in it."""


class StreamFacts(NamedTuple):
    """A stream at one moment.

    Attributes:
        created: when it was made, as the broker writes it; another one with its name has another.
        first: the position of its oldest message; one above `last` if it is empty.
        last: the position of its newest message.
    """

    created: str
    first: int
    last: int


async def read_stream(connection: Connection, stream: str) -> StreamFacts:
    """A stream's facts.

    Raises:
        TransportError: there is none, or no answer.
    """
    said = await connection.call(f"STREAM.INFO.{stream}")
    return StreamFacts(said["created"], said["state"]["first_seq"], said["state"]["last_seq"])


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


async def ensure_stores(connection: Connection, settings: JetStreamSettings) -> None:
    """Makes the fleet's stream, registry and object store, those that are not there.

    Raises:
        AccessRefused: one is missing and we may not make it.
        TransportError: the broker cannot, or the stream that is there is for something else.
    """
    names = settings.names
    makers = {
        names.stream: _make_stream,
        f"KV_{names.registry}": _make_registry,
        f"OBJ_{names.snapshots}": _make_snapshots,
    }
    deadline = time.monotonic() + settings.connect_timeout_s
    while await _missing(connection, makers):
        async with alone(connection, names.fleet) as is_ours:
            if is_ours:
                for name in await _missing(connection, makers):
                    await makers[name](connection, settings)
                break
        if time.monotonic() >= deadline:
            raise TransportError(
                f"{connection.server}: another client makes the stores of {names.fleet}, and does not end"
            )
    await _check_stream(connection, settings)


@contextlib.asynccontextmanager
async def alone(connection: Connection, fleet: str) -> AsyncIterator[bool]:
    """Whether, of all clients that ask at the same time, it is this one that makes the stores.

    nats-server 2.9 deletes a stream's files when two clients make it at the same moment. So all who find something
    missing draw a number and tell it; the lowest wins, and whoever comes later is told that it is taken.
    """
    subject, mine = f"kvevents-making.{fleet}", f"1{secrets.token_hex(8)}"
    heard: set[str] = set()

    async def hear(message: Msg) -> None:
        told = message.data.decode("ascii", "replace")
        heard.add(told)
        if told not in {mine, _TAKEN} and has_won:
            await connection.client.publish(subject, _TAKEN.encode())

    has_won = False
    try:
        subscription = await connection.client.subscribe(subject, cb=hear)
        await connection.client.publish(subject, mine.encode())
        await asyncio.sleep(_ELECTION_S)
        has_won = all(told >= mine for told in heard)
        yield has_won
        await subscription.unsubscribe()
    except (nats.errors.Error, OSError) as error:
        raise TransportError(f"{connection.server}: {error!r}") from None


async def _check_stream(connection: Connection, settings: JetStreamSettings) -> None:
    """Refuses a stream of somebody else's making that takes none of the batches, or does not keep them."""
    names = settings.names
    config = (await connection.call(f"STREAM.INFO.{names.stream}"))["config"]
    subjects, retention = config.get("subjects", []), config.get("retention")
    is_fed = config.get("mirror") or config.get("sources")
    if not is_fed and not any(_covers(subject, names.subjects) for subject in subjects):
        raise TransportError(
            f"{connection.server}: stream {names.stream}: expected one of {names.subjects}, found {subjects};"
            " delete it, or take another name for the fleet"
        )
    if retention != "limits":
        raise TransportError(
            f"{connection.server}: stream {names.stream}: expected retention by limits, found {retention!r}: it forgets"
            " what others have not read; delete it, or take another name for the fleet"
        )


def _covers(pattern: str, subjects: str) -> bool:
    """Whether a stream's subject takes in all of ours."""
    mine = subjects.split(".")
    for place, part in enumerate(pattern.split(".")):
        if part == ">":
            return place < len(mine)
        if place >= len(mine) or mine[place] == ">" or part not in {"*", mine[place]}:
            return False
    return False  # ours end with >


async def _missing(connection: Connection, names: Iterable[str]) -> list[str]:
    missing = []
    for name in names:
        try:
            await read_stream(connection, name)
        except BrokerError as error:
            if error.code != _STREAM_MISSING:
                raise
            missing.append(name)
    return missing


async def _make_stream(connection: Connection, settings: JetStreamSettings) -> None:
    names = settings.names
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
    await connection.call(f"STREAM.CREATE.{names.stream}", config)


async def _make_registry(connection: Connection, settings: JetStreamSettings) -> None:
    config = api.KeyValueConfig(
        bucket=settings.names.registry,
        history=1,
        ttl=_LEASES_KEPT * settings.lease_s,
        storage=_storage(settings),
        replicas=settings.replicas,
    )
    await _told(connection, connection.jetstream.create_key_value(config))


async def _make_snapshots(connection: Connection, settings: JetStreamSettings) -> None:
    bucket = settings.names.snapshots
    config = api.ObjectStoreConfig(
        bucket=bucket,
        max_bytes=2 * settings.max_snapshot_bytes,
        storage=_storage(settings),
        replicas=settings.replicas,
    )
    await _told(connection, connection.jetstream.create_object_store(bucket, config))


def _storage(settings: JetStreamSettings) -> api.StorageType:
    return api.StorageType.FILE if settings.is_durable else api.StorageType.MEMORY


async def _told(connection: Connection, making: Awaitable[object]) -> None:
    """Waits for nats-py to make something; what goes wrong is said in our words."""
    try:
        await making
    except (nats.errors.Error, OSError) as error:
        if connection.complaint:
            raise AccessRefused(f"{connection.server}: {connection.complaint}") from None
        raise TransportError(f"{connection.server}: registry and snapshots cannot be made: {error!r}") from None
