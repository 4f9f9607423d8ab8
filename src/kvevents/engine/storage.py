"""What is below a rank's host memory."""

import contextlib
from pathlib import Path

from kvevents.caches import FileStore, MemoryStore, TierStore
from kvevents.engine.config import IN_MEMORY, EngineConfig


def open_store(config: EngineConfig, dp_rank: int, opened: contextlib.ExitStack) -> TierStore | None:
    """The store of a rank, whose blocks have no bytes; None where the settings want none.

    Args:
        config: the engine's settings.
        dp_rank: the rank: each has a folder of its own.
        opened: closes what has to be closed.

    Raises:
        ConfigError: the folder cannot be used, or another process uses it.
    """
    if config.storage is None:
        return None
    capacity, medium = config.storage_capacity // config.page_size, config.storage_tier
    if config.storage == IN_MEMORY:
        return MemoryStore(capacity, medium=medium)
    # Not flushed to the disk: what a machine that stops cuts off is noticed, and here it costs no real KV.
    return opened.enter_context(
        FileStore(Path(config.storage) / f"rank{dp_rank}", capacity=capacity, medium=medium, sync=False)
    )
