"""An event stream for programs: one JSON object for each event, and for whatever else happens."""

from collections.abc import Iterator
from typing import Any

import msgspec

from kvevents.cli.lines import pseudonym
from kvevents.cli.stream import Batch, Item, Refused, StateChange
from kvevents.cli.token_text import TokenText
from kvevents.events import BlockHash, BlockStored

_SECRETS = ("cache_salt", "metadata", "extra_keys")


def event_records(item: Item, text: TokenText | None = None) -> Iterator[dict[str, Any]]:
    """One object for each event of a batch: every field as it came, but digests as hex, secrets as pseudonyms.

    With `text`, stores have one more: what their tokens stand for.
    """
    if not isinstance(item, Batch):
        return
    origin = msgspec.to_builtins(item.origin)
    for event in item.batch.events:
        fields = msgspec.to_builtins(event, builtin_types=(bytes,))
        if "block_hashes" in fields:
            fields["block_hashes"] = [_hash(block) for block in fields["block_hashes"]]
        if "parent_block_hash" in fields:
            fields["parent_block_hash"] = _hash(fields["parent_block_hash"])
        fields |= {name: _masked(fields[name]) for name in _SECRETS if name in fields}
        said = {"text": text.of(event.token_ids)} if text is not None and isinstance(event, BlockStored) else {}
        yield {**origin, "ts": item.batch.ts, "event": fields, **said}


def other_records(item: Item) -> Iterator[dict[str, Any]]:
    """Objects for what is no event: a changed state, a refused batch, skipped events."""
    origin = msgspec.to_builtins(item.origin)
    if isinstance(item, Batch):
        for skipped in item.batch.skipped:
            yield {**origin, "ts": item.batch.ts, "skipped": skipped}
    elif isinstance(item, Refused):
        refused = {"reason": item.error.reason, "offset": item.error.offset, "size_bytes": item.size_bytes}
        yield {**origin, "refused": refused}
    elif isinstance(item, StateChange):
        yield {**origin, "state": item.state, "reason": item.reason}
    else:
        yield {**origin, "cleared": True}


def _hash(block: BlockHash | None) -> int | str | None:
    return block.hex() if isinstance(block, bytes) else block


def _masked(value: Any) -> Any:
    if isinstance(value, str | bytes):
        return pseudonym(value if isinstance(value, str) else value.hex())
    if isinstance(value, list | tuple):
        return [_masked(item) for item in value]
    if isinstance(value, dict):
        return {name: _masked(item) for name, item in value.items()}
    return value
