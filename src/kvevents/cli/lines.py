"""An event stream for people: one line for each event, and for whatever else happens."""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence

from kvevents.cli.stream import Batch, Item, Origin, Refused, StateChange
from kvevents.cli.token_text import TokenText
from kvevents.events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    BlockStoredWithMetadata,
    KVCacheEvent,
)

FIRST_TOKENS = 6
"""Token ids of a store that are shown."""

FIRST_LETTERS = 60
"""Characters of its text, where there is one."""

_KEY = os.urandom(16)


def event_lines(item: Item, text: TokenText | None = None) -> Iterator[str]:
    """One line for each event of a batch; with `text`, token ids as what they stand for."""
    if isinstance(item, Batch):
        for event in item.batch.events:
            yield f"{_origin(item.origin)} {_event(event, text)}"


def other_lines(item: Item) -> Iterator[str]:
    """Lines for what is no event: a changed state, a refused batch, skipped events."""
    where = _origin(item.origin)
    if isinstance(item, Batch):
        for skipped in item.batch.skipped:
            yield f"{where} skipped an event, {skipped.code} at byte {skipped.offset}: {skipped.reason}"
    elif isinstance(item, Refused):
        yield f"{where} refused a batch of {item.size_bytes} bytes: {item.error}"
    elif isinstance(item, StateChange):
        yield f"{where} is {item.state}" + (f": {item.reason}" if item.reason else "")
    else:
        yield f"{where} starts anew: what was announced before no longer holds"


def short(block: BlockHash) -> str:
    """The first 8 hex digits of a block's 64 bits; of a digest those of its last 8 bytes, which are its identity."""
    return (block[-8:].hex() if isinstance(block, bytes) else f"{block & (1 << 64) - 1:016x}")[:8]


def pseudonym(secret: str) -> str:
    """A short name for a secret: the same for the same secret within this run, another in the next."""
    return "~" + hashlib.blake2b(secret.encode(), key=_KEY, digest_size=4).hexdigest()


def _origin(origin: Origin) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(origin.received))
    rank = "" if origin.dp_rank is None else f"/{origin.dp_rank}"
    seq = "" if origin.seq is None else f" #{origin.seq}"
    return f"{clock}.{int(origin.received * 1000) % 1000:03d} {origin.worker}{rank}{seq}"


def _event(event: KVCacheEvent, text: TokenText | None) -> str:
    if isinstance(event, AllBlocksCleared):
        return "cleared"
    group = "" if event.group_idx is None else f" group {event.group_idx}"
    medium = event.medium or "GPU"
    if isinstance(event, BlockRemoved):
        return f"removed {medium}{group} {_blocks(event.block_hashes)}"
    parent = "no parent" if event.parent_block_hash is None else f"parent {short(event.parent_block_hash)}"
    return (
        f"stored {medium}{group} {_blocks(event.block_hashes)}, {parent}, "
        f"{len(event.token_ids)} tokens {_tokens(event, text)}{_attributes(event)}"
    )


def _tokens(event: BlockStored, text: TokenText | None) -> str:
    if text is None:
        more = ["..."] if len(event.token_ids) > FIRST_TOKENS else []
        return f"[{', '.join([*map(str, event.token_ids[:FIRST_TOKENS]), *more])}]"
    said = text.of(event.token_ids)
    return json.dumps(said[:FIRST_LETTERS], ensure_ascii=False) + ("..." if len(said) > FIRST_LETTERS else "")


def _attributes(event: BlockStored) -> str:
    salt = event.cache_salt
    if salt is None and isinstance(event, BlockStoredWithMetadata) and event.metadata is not None:
        salt = event.metadata.cache_salt
    adapter = event.lora_id if event.lora_name is None else event.lora_name
    known = {"adapter": adapter, "salt": None if salt is None else pseudonym(salt), "session": event.session_id}
    return "".join(f", {name} {value}" for name, value in known.items() if value is not None)


def _blocks(hashes: Sequence[BlockHash]) -> str:
    if len(hashes) == 1:
        return f"1 block {short(hashes[0])}"
    return f"{len(hashes)} blocks" + (f" {short(hashes[0])}..{short(hashes[-1])}" if hashes else "")
