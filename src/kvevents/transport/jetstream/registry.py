"""Which workers there are: a record each in a KV bucket, renewed as long as its publisher lives."""

import msgspec

from kvevents.errors import TransportError, WireError
from kvevents.index import GroupSpec
from kvevents.transport.jetstream.connection import Connection
from kvevents.transport.jetstream.names import Names
from kvevents.transport.source import Residency

_OPERATION = "KV-Operation"
_NO_ANSWER: dict[str, str | int] = {"description": "no JetStream answers there", "err_code": 0}


class WorkerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a publisher says of itself. JSON on the broker; fields that are not known are passed over.

    Attributes:
        worker: the worker's id.
        rank: its data-parallel rank.
        incarnation: drawn anew by every publisher when it starts.
        lease_s: the record holds for so long.
        settled: every batch up to this number is in the stream or was dropped; None before the first.
        position: where in the stream its last batch is; a consumer that has read up to there and has not seen `settled`
            has lost something.
        dropped: batches that were dropped.
        block_size: tokens in a block of the worker's events.
        residency: how its blocks are counted, as in `Source`.
        groups: the KV cache groups of a hybrid model, by the number that events give them.
        url: where the worker takes requests.
    """

    worker: str
    rank: int
    incarnation: str
    lease_s: float
    settled: int | None = None
    position: int = 0
    dropped: int = 0
    block_size: int | None = None
    residency: Residency = "counted"
    groups: tuple[GroupSpec, ...] = ()
    url: str | None = None


async def renew(connection: Connection, names: Names, record: WorkerRecord) -> None:
    """Writes a record.

    Raises:
        TransportError: the broker did not take it.
    """
    answer = await connection.request(_subject(names, record), msgspec.json.encode(record))
    _check(answer.data)


async def withdraw(connection: Connection, names: Names, record: WorkerRecord) -> None:
    """Takes a record out: its publisher has ended in good order.

    Raises:
        TransportError: the broker did not do it.
    """
    answer = await connection.request(_subject(names, record), b"", {_OPERATION: "DEL"})
    _check(answer.data)


def read_record(data: bytes, headers: dict[str, str]) -> WorkerRecord | None:
    """A record as it stands in the bucket; None if it was taken out.

    Raises:
        WireError: it is no record.
    """
    if _OPERATION in headers:
        return None
    try:
        return msgspec.json.decode(data, type=WorkerRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"a record of the registry: {error}", 0) from None


def _subject(names: Names, record: WorkerRecord) -> str:
    return f"$KV.{names.registry}.{names.key(record.worker, record.rank)}"


class Acknowledgement(msgspec.Struct, frozen=True):
    """The broker's answer to a message.

    Attributes:
        seq: its position in the stream.
        duplicate: whether the broker had a message with its id.
        error: why it was not stored; has `description` and `err_code`.
    """

    seq: int = 0
    duplicate: bool = False
    error: dict[str, str | int] | None = None


def read_acknowledgement(data: bytes) -> Acknowledgement:
    """An answer as it came; one that cannot be read is an error too."""
    try:
        said = msgspec.json.decode(data, type=Acknowledgement)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Acknowledgement(error=_NO_ANSWER)
    return said if said.error is None else Acknowledgement(error=_NO_ANSWER | said.error)


def _check(data: bytes) -> None:
    if (error := read_acknowledgement(data).error) is not None:
        raise TransportError(f"the registry did not take the record: {error['description']}")
