"""What a capture consists of: as values, and as they are written."""

from typing import Annotated, TypeAlias

import msgspec

from kvevents.index import GroupSpec
from kvevents.transport.source import Residency, Source

_LAST_SEQUENCE = 2**63 - 1


class CaptureSource(msgspec.Struct, frozen=True):
    """A publisher whose batches are in a capture; where it listened is not.

    Attributes:
        worker_id: the worker's name.
        dp_rank: its rank; None where the batches say it.
        topic: what it published under, as far as it was known when it was first written.
        block_size: tokens in a block; None if not known.
        residency: as in `Source`.
        groups: the KV cache groups of a hybrid model.
        has_replay: whether it had a replay socket.
    """

    worker_id: str
    dp_rank: Annotated[int, msgspec.Meta(ge=0)] | None = None
    topic: str = ""
    block_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    residency: Residency = "counted"
    groups: tuple[GroupSpec, ...] = ()
    has_replay: bool = False

    @classmethod
    def of(cls, source: Source) -> "CaptureSource":
        """What a capture says of a source."""
        return cls(
            source.worker_id,
            source.dp_rank,
            source.topic,
            source.block_size,
            source.residency,
            source.groups,
            source.replay_endpoint is not None,
        )


class CapturedBatch(msgspec.Struct, frozen=True):
    """A batch as it came.

    Attributes:
        time: arrival, unix seconds; 0 where a file does not say.
        source: who published it.
        sequence: its number; None where a file does not say.
        payload: the encoded batch, under pseudonyms unless the file's privacy says otherwise.
        topic: what it was published under; None where the message had no room for it.
        replayed: it came through the replay socket, so that its arrival says nothing about when it was published.
    """

    time: float
    source: CaptureSource
    sequence: int | None
    payload: bytes
    topic: bytes | None = None
    replayed: bool = False


class CapturedState(msgspec.Struct, frozen=True):
    """A source was in another state from here on.

    Attributes:
        time: unix seconds.
        source: the source.
        state: `connecting`, `recovering`, `live`, `degraded` or `lost`.
        code: why, as a stable name.
        detail: why, for people; empty unless the capture is raw.
        counters: what was counted of the source up to here: gaps, missing batches, duplicates and so on.
    """

    time: float
    source: CaptureSource
    state: str
    code: str
    detail: str
    counters: dict[str, int]


class CapturedReset(msgspec.Struct, frozen=True):
    """A source began anew: what it had announced before holds no longer.

    Attributes:
        time: unix seconds.
        source: the source.
    """

    time: float
    source: CaptureSource


class CapturedRefusal(msgspec.Struct, frozen=True):
    """A batch that could not be read, and is not in the capture since nothing in it could be replaced.

    Attributes:
        time: unix seconds.
        source: the source.
        sequence: its number.
        size_bytes: its length.
        reason: what was wrong with it, without any value of it.
        offset: where.
    """

    time: float
    source: CaptureSource
    sequence: int | None
    size_bytes: int
    reason: str
    offset: int


CaptureRecord: TypeAlias = CapturedBatch | CapturedState | CapturedReset | CapturedRefusal


class _Written(msgspec.Struct, array_like=True, frozen=True):
    """As written: an array, its kind first. Later versions may add elements at the end."""


class SourceLine(_Written, tag="source", frozen=True):
    number: int
    source: CaptureSource


class BatchLine(_Written, tag="batch", frozen=True):
    time_ns: int
    source: int
    sequence: Annotated[int, msgspec.Meta(ge=0, le=_LAST_SEQUENCE)] | None
    payload: bytes
    topic: bytes | None = None
    replayed: bool = False


class StateLine(_Written, tag="state", frozen=True):
    time_ns: int
    source: int
    state: str
    code: str
    detail: str
    counters: dict[str, int]


class ResetLine(_Written, tag="reset", frozen=True):
    time_ns: int
    source: int


class RefusalLine(_Written, tag="refusal", frozen=True):
    time_ns: int
    source: int
    sequence: int | None
    size_bytes: int
    reason: str
    offset: int


class EndLine(_Written, tag="end", frozen=True):
    """The writer was closed here; a capture without it was cut off."""

    time_ns: int
    is_last: bool


Line: TypeAlias = SourceLine | BatchLine | StateLine | ResetLine | RefusalLine | EndLine
