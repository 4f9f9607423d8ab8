"""The prefix index: which worker holds how much of a prompt.

Engines announce which blocks of the KV cache they hold; the index keeps that picture for all of them and answers, for
a prompt's token ids, how many leading blocks each worker has, where, and how many of them its engine will reuse.

    >>> from kvevents.events import BlockStored, KVEventBatch
    >>> index = PrefixIndex(block_size=2)
    >>> store = BlockStored([11, 12], None, [1, 2, 3, 4], block_size=2, medium="GPU")
    >>> index.apply("worker-a", KVEventBatch(ts=0.0, events=[store])).stored
    2
    >>> [(match.worker, match.total) for match in index.match([1, 2, 3, 4, 5, 6])]
    [('worker-a', 2)]

A block's identity is the hash of its whole prefix, its adapter, its salt and its images, computed from what events
say and from the prompt alone. So engines that hash differently, or cut prompts differently, are compared rightly, and
a block whose identity is not known (its tokens or its salt were never said) is kept but never counts.
"""

from kvevents._core.index import ApplyReport, WorkerHandle
from kvevents.index.answers import IndexStats, Matches, SourceStats, WorkerMatch
from kvevents.index.prefix_index import GroupSpec, PrefixIndex, Prompt
from kvevents.index.view import Holder, Stretch, View

__all__ = [
    "ApplyReport",
    "GroupSpec",
    "Holder",
    "IndexStats",
    "Matches",
    "PrefixIndex",
    "Prompt",
    "SourceStats",
    "Stretch",
    "View",
    "WorkerHandle",
    "WorkerMatch",
]
