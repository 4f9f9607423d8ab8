"""How batches reach the index: as bytes of any dialect, between things that nobody can use, and with faults.

Every event is written in a dialect of its own, its hashes in any of their forms, and what is told of the order of
events (sequences) and of ranks comes in the ways that engines and transports have.
"""

from typing import Any, Literal, NamedTuple

import msgspec
from hypothesis import strategies as st

from index_streams import RANKS, Batch, Stream, streams
from kvevents.events import AllBlocksCleared, BlockHash, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.wire import Dialect, encode_batch
from strategies import DIALECTS

Fate = Literal["told", "again", "broken", "lost", "cleared", "removed"]

FAULTS: tuple[Fate, ...] = ("again", "broken", "lost", "cleared", "removed")

UNUSABLE: tuple[tuple[Any, str], ...] = (
    ({"type": "BlockMoved", "block_hashes": [1]}, "unknown-tag"),
    (["BlocksRenamed", [1], None], "unknown-tag"),
    (["BlockStored", "no list", None, [1, 2], 2, None, "GPU"], "wrong-type"),
    ({"type": "BlockRemoved", "block_hashes": [1], "medium": 5}, "wrong-type"),
    ({"type": "BlockRemoved", "medium": "GPU"}, "missing-field"),
    (["BlockRemoved", [2**63, -1, 1.5], "GPU"], "wrong-type"),
    (
        {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [-1], "block_size": 1},
        "out-of-range",
    ),
)
"""Well-formed events that no index can use, and the code that says why."""


class Delivery(NamedTuple):
    """A batch on its way.

    Attributes:
        fate: what becomes of it: `told`; `again`, under a sequence that may have been there; `broken` on the way;
            `lost`; or its worker is `cleared` or `removed` (and added anew) before it comes.
        rank: what its events belong to, whatever is told beside.
        beside: the rank that is told beside.
        seq: its number in the order of its source, if the source numbers batches.
    """

    fate: Fate
    worker: int
    rank: int | None
    beside: int | None
    seq: int | None
    events: list[KVCacheEvent]
    data: bytes
    skipped: list[str]


def raw(event: KVCacheEvent, dialect: Dialect) -> msgspec.Raw:
    """One event in a dialect; in SGLang's maps, which can say everything, if the dialect cannot say it."""
    try:
        data = encode_batch(KVEventBatch(0.0, [event]), dialect=dialect)
    except ValueError:
        data = encode_batch(KVEventBatch(0.0, [event]))
    frame = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
    (only,) = msgspec.msgpack.decode(frame[1], type=list[msgspec.Raw])
    return only


def spelled(block: BlockHash, form: str) -> BlockHash:
    """A hash that came as an unsigned integer, in another of its forms."""
    assert isinstance(block, int)
    if form == "signed":
        return block - 2**64 if block >= 2**63 else block
    return block if form == "unsigned" else block.to_bytes(8, "big").rjust(int(form), b"\xab")


def respelled(event: KVCacheEvent, form: str) -> KVCacheEvent:
    if isinstance(event, AllBlocksCleared):
        return event
    changes: dict[str, Any] = {"block_hashes": [spelled(block, form) for block in event.block_hashes]}
    if isinstance(event, BlockStored) and event.parent_block_hash is not None:
        changes["parent_block_hash"] = spelled(event.parent_block_hash, form)
    return msgspec.structs.replace(event, **changes)


def payload(events: list[msgspec.Raw | Any], rank: int | None, *, as_map: bool) -> bytes:
    if as_map:
        return msgspec.msgpack.encode({"ts": 0.0, "events": events, "attn_dp_rank": rank})
    return msgspec.msgpack.encode([0.0, events] if rank is None else [0.0, events, rank])


@st.composite
def deliveries(draw: st.DrawFn, batches: list[Batch]) -> list[Delivery]:
    """The same batches on their way, those of a source in any order."""
    numbered = draw(st.booleans())
    order = list(batches)
    for place in draw(st.lists(st.integers(0, max(0, len(order) - 2)), max_size=2)):
        order[place : place + 2] = order[place : place + 2][::-1]
    next_seq: dict[tuple[int, int | None], int] = {}
    found = []
    for batch in order:
        fate: Fate = draw(st.sampled_from(FAULTS)) if draw(st.integers(0, 5)) == 5 else "told"
        source = (batch.worker, batch.rank)
        seq = next_seq.get(source, 0)
        next_seq[source] = seq + 1
        if fate == "again":
            seq = draw(st.integers(0, seq))
        data, skipped = draw(_written(batch))
        beside = draw(st.sampled_from(RANKS)) if batch.rank is not None else None
        if batch.rank is not None and draw(st.booleans()):
            data, skipped, beside = *draw(_written(batch._replace(rank=None))), batch.rank
        if fate == "broken":
            data = data[: draw(st.integers(0, len(data) - 1))]
        found.append(
            Delivery(fate, batch.worker, batch.rank, beside, seq if numbered else None, batch.events, data, skipped)
        )
    return found


@st.composite
def _written(draw: st.DrawFn, batch: Batch) -> tuple[bytes, list[str]]:
    """The payload, and the codes of what is in between and cannot be used."""
    pieces: list[Any] = []
    skipped = []
    form = draw(st.sampled_from(["unsigned", "signed", "32", "16"]))
    dialect = draw(st.sampled_from(DIALECTS))
    is_mixed = draw(st.booleans())
    for event in batch.events:
        if is_mixed:
            form = draw(st.sampled_from(["unsigned", "signed", "32", "16"]))
            dialect = draw(st.sampled_from(DIALECTS))
            if draw(st.integers(0, 3)) == 3:
                piece, code = draw(st.sampled_from(UNUSABLE))
                pieces.append(piece)
                skipped.append(code)
        pieces.append(raw(respelled(event, form), dialect))
    return payload(pieces, batch.rank, as_map=draw(st.booleans())), skipped


class Run(NamedTuple):
    """A stream, and what becomes of its batches."""

    stream: Stream
    deliveries: list[Delivery]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    stream = draw(streams())
    return Run(stream, draw(deliveries(stream.batches)))
