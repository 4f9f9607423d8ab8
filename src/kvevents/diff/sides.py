"""The two sides of a comparison, from wherever they are: a router, a snapshot, an engine, a capture."""

import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from kvevents.diff.compare import RankBlocks
from kvevents.errors import ConfigError, TransportError, WireError
from kvevents.events import BlockHash, BlockStored
from kvevents.index import PrefixIndex
from kvevents.transport import CaptureReader, ConsumerKeys, State, Subscriber, discover
from kvevents.transport.capture import CapturedBatch, CapturedReset
from kvevents.transport.http_fetch import StatusError, fetch

Side: TypeAlias = dict[tuple[str, int], RankBlocks]
"""By worker and rank; a rank that nobody names is 0."""

_ANY_BLOCK_SIZE = 16
"""Of the answers to matches, which nobody asks for here: blocks are compared in each engine's own size."""

_MOST_SNAPSHOT_BYTES = 1 << 32
_LOOK_S = 0.05


class _RankHoldings(msgspec.Struct):
    tiers: dict[str, set[int]]
    dp_rank: Annotated[int, msgspec.Meta(ge=0)] | None = None
    seq: int | None = None


class _Holdings(msgspec.Struct):
    ranks: list[_RankHoldings]


def read_index(where: str, *, token: str | None = None, timeout_s: float = 30.0) -> PrefixIndex:
    """The index of a router (its base URL), or one that was saved: the answer of `GET /snapshot` in a file.

    Raises:
        ConfigError: no such file.
        TransportError: the router cannot be reached, or refuses.
        WireError: it is no snapshot.
    """
    if where.startswith(("http://", "https://")):
        url = f"{where.rstrip('/')}/snapshot"
        data = fetch(url, token=token, timeout_s=timeout_s, max_bytes=_MOST_SNAPSHOT_BYTES)
    else:
        try:
            data = Path(where).read_bytes()
        except OSError as error:
            raise ConfigError(f"{where}: expected a router's URL or a snapshot in a file: {error.strerror}") from None
    index = PrefixIndex(_ANY_BLOCK_SIZE)
    try:
        index.restore(data)
    except WireError as error:
        raise WireError(f"{where}: {error.reason}", error.offset) from None
    return index


def index_side(index: PrefixIndex) -> Side:
    """What an index holds."""
    last = {(source.worker, source.dp_rank or 0): source.last_seq for source in index.stats().sources}
    side: Side = {}
    for worker in dict.fromkeys(source.worker for source in index.stats().sources):
        parents: dict[int, dict[int, int | None]] = {}
        for batch in index.dump_events(worker):
            above = parents.setdefault(batch.attn_dp_rank or 0, {})
            for event in batch.events:
                if isinstance(event, BlockStored) and event.block_hashes:
                    blocks = [_signed(block) for block in event.block_hashes]
                    above.update(zip(blocks[1:], blocks, strict=False))
                    parent = event.parent_block_hash
                    above.setdefault(blocks[0], None if parent is None else _signed(parent))
        for rank, tiers in index.holdings(worker).items():
            key = worker, rank or 0
            side[key] = RankBlocks(last.get(key), tiers, parents.get(rank or 0, {}))
    return side


def capture_side(reader: CaptureReader, *, until: Mapping[tuple[str, int], int | None], worker: str | None) -> Side:
    """What engines held at a capture's end, or after the batches that the index has seen.

    Args:
        reader: a capture with the engines' own hashes.
        until: the last batch of each worker and rank that counts; None, or not there: all of them.
        worker: what the captured worker is called in the index, if not as in the capture.

    Raises:
        ConfigError: the capture is pseudonymous: its hashes are none of the engine's.
    """
    index = PrefixIndex(_ANY_BLOCK_SIZE)
    for record in reader:
        if any(head.privacy.hashes for head in reader.heads):
            raise ConfigError(
                "the capture has pseudonyms for hashes, which no index knows: record with --keep-hashes to compare"
            )
        name, rank = worker or record.source.worker_id, record.source.dp_rank
        if isinstance(record, CapturedReset):
            index.clear_worker(name, rank)
        if not isinstance(record, CapturedBatch):
            continue
        last = until.get((name, rank or 0))
        if last is None or record.sequence is None or record.sequence <= last:
            index.apply(name, record.payload, seq=record.sequence, dp_rank=rank)
    return index_side(index)


def engine_side(
    url: str, *, worker: str, api_key: str | None = None, keys: ConsumerKeys | None = None, timeout_s: float = 30.0
) -> Side:
    """What a running engine holds: as it says itself (`GET /holdings`), else as its events say from their beginning.

    Raises:
        ConfigError: it publishes no events.
        TransportError: it cannot be reached, or its events could not be had completely.
    """
    try:
        body = fetch(f"{url.rstrip('/')}/holdings", token=api_key, timeout_s=timeout_s)
    except StatusError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return _followed_side(url, worker=worker, api_key=api_key, keys=keys, timeout_s=timeout_s)
    try:
        holdings = msgspec.json.decode(body, type=_Holdings)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TransportError(f"{url}/holdings: expected blocks by rank and tier: {error}") from None
    return {(worker, rank.dp_rank or 0): RankBlocks(rank.seq, rank.tiers, {}) for rank in holdings.ranks}


def _followed_side(url: str, *, worker: str, api_key: str | None, keys: ConsumerKeys | None, timeout_s: float) -> Side:
    sources = discover(url, worker_id=worker, api_key=api_key, keys=keys)
    index = PrefixIndex(_ANY_BLOCK_SIZE)
    end = time.monotonic() + timeout_s
    with Subscriber(sources, index) as subscriber:
        while any(state.state is not State.LIVE for state in subscriber.states().values()):
            if time.monotonic() > end:
                reasons = "; ".join(f"{state.state}: {state.reason}" for state in subscriber.states().values())
                raise TransportError(f"{url}: its events are not complete after {timeout_s:g} s: {reasons}")
            time.sleep(_LOOK_S)
        return index_side(index)


def _signed(block: BlockHash) -> int:
    number = int.from_bytes(block[-8:], "big") if isinstance(block, bytes) else block
    return (number + 2**63) % 2**64 - 2**63
