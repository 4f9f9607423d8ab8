"""Images and the like as extra keys of blocks."""

from collections.abc import Iterable
from typing import Any

from kvevents.index.prefix_index import ExtraKeys


def extra_keys(media: Iterable[tuple[int, str]], *, block_size: int) -> ExtraKeys | None:
    """An entry for each block up to the last with an image: the image's identity and where it starts in the block.

    A block's hash covers all blocks before it, so one entry where an image starts tells all that follows apart.

    Args:
        media: token before which each one stands, and its identity.
        block_size: tokens in a block of the index.
    """
    entries: list[list[Any] | None] = []
    for position, identity in media:
        block, offset = divmod(position, block_size)
        entries.extend([None] * (block + 1 - len(entries)))
        entry = entries[block]
        if entry is None:
            entries[block] = entry = []
        entry.append([identity, offset])
    return entries or None
