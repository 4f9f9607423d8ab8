"""The wire: batches of events as bytes, in the formats that SGLang and vLLM speak.

    >>> from kvevents.events import BlockRemoved, KVEventBatch
    >>> payload = encode_batch(KVEventBatch(ts=0.0, events=[BlockRemoved([7], medium="GPU")]))
    >>> decode_batch(payload).events
    [BlockRemoved(block_hashes=[7], medium='GPU')]

Decoding needs no setting: it reads every dialect, mixed in one batch too.
"""

from typing import Literal, TypeAlias

from kvevents._core.wire import decode_batch, encode_batch
from kvevents.errors import WireError

Dialect: TypeAlias = Literal["sglang", "sglang-array", "vllm", "vllm-array"]
"""What `encode_batch` can write."""

__all__ = ["Dialect", "WireError", "decode_batch", "encode_batch"]
