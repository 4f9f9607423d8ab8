"""Dynamo's radix tree, the structure behind its indexer, in this process and fed with our batches."""

import importlib
import json
import sys
from typing import Any

from benchmarks.peers import Unavailable, install
from kvevents.events import BlockRemoved, BlockStored, KVCacheEvent
from kvevents.wire import decode_batch

VERSION = "1.6.1"
REQUIREMENTS = (f"ai-dynamo-runtime=={VERSION}", "pydantic==2.13.4", "uvloop==0.23.0")
"""With what its Python part needs; its extension alone needs nothing."""
WORKER = 1


def install_indexer() -> None:
    """Install the standalone indexer.

    Raises:
        Unavailable: it cannot be had here.
    """
    install(*REQUIREMENTS, dependencies=True)


class Tree:
    """What Dynamo knows of one worker."""

    def __init__(self, block_size: int) -> None:
        """Raise `Unavailable` where Dynamo cannot be had."""
        packages = str(install(REQUIREMENTS[0], dependencies=False))
        if packages not in sys.path:
            sys.path.append(packages)
        try:
            core = importlib.import_module("dynamo._core")
        except ImportError as error:
            raise Unavailable(f"Dynamo's extension does not load here: {error}") from error
        self._tree = core.RadixTree()
        self._hash = core.compute_block_hash_for_seq
        self._block_size = block_size
        self._count = 0

    def apply(self, data: bytes) -> None:
        """Every event of a batch, as Dynamo's own messages."""
        self.take(WORKER, self.messages(data))

    def messages(self, data: bytes) -> list[bytes]:
        """A batch as Dynamo's own messages, their tokens hashed."""
        messages = []
        for event in decode_batch(data).events:
            self._count += 1
            message = {"event_id": self._count, "dp_rank": 0, "data": self._message(event)}
            messages.append(json.dumps(message, separators=(",", ":")).encode())
        return messages

    def take(self, worker: int, messages: list[bytes]) -> None:
        """Apply messages of a worker."""
        for message in messages:
            self._tree.apply_event(worker, message)

    def hash(self, tokens: Any) -> Any:
        """The hashes of a list of token ids, block by block."""
        return self._hash(tokens, self._block_size)

    def depth(self, tokens: Any) -> int:
        """How many leading blocks of a prompt the worker has."""
        scores = self._tree.find_matches(self._hash(list(tokens), self._block_size)).scores
        return max(scores.values(), default=0)

    def _message(self, event: KVCacheEvent) -> dict[str, Any] | str:
        match event:
            case BlockStored():
                content = self._hash(event.token_ids, self._block_size)
                blocks = [
                    {"block_hash": unsigned(block), "tokens_hash": tokens}
                    for block, tokens in zip(event.block_hashes, content, strict=True)
                ]
                parent = event.parent_block_hash
                return {"stored": {"parent_hash": None if parent is None else unsigned(parent), "blocks": blocks}}
            case BlockRemoved():
                return {"removed": {"block_hashes": [unsigned(block) for block in event.block_hashes]}}
            case _:
                return "cleared"


def unsigned(block: Any) -> int:
    return int(block) % (1 << 64)
