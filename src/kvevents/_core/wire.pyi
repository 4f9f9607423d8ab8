"""`kvevents._core.wire`: see `kvevents.wire`."""

from typing import Literal, TypeAlias

from _typeshed import ReadableBuffer

from kvevents.events import KVEventBatch

# Public as kvevents.wire.Dialect; stubs import no higher layer.
_Dialect: TypeAlias = Literal["sglang", "sglang-array", "vllm", "vllm-array"]

def decode_batch(data: ReadableBuffer, /, *, strict: bool = True) -> KVEventBatch:
    """Read the payload of one message, whatever dialect it is written in.

    Maps and arrays, of SGLang and of vLLM, are told apart event by event and may be mixed in one batch. Values stay as
    they came. Events of unknown types are left out and listed in `skipped`; fields of unknown names are kept in the
    event's `unknown_fields`; elements after the last field that an array is known to have are counted in
    `unread_fields`.

    Args:
        data: the payload, as bytes or another buffer of bytes.
        strict: whether an event that cannot be used (a value of a wrong type or out of range, a field missing or
            twice, more than a limit allows) is an error. If not, it is left out and listed in `skipped` too.

    Raises:
        WireError: broken msgpack anywhere in the payload, a broken batch around the events, or (strict) an event that
            cannot be used; with the position of the fault. There is never a part of a batch.
    """

def batch_rank(data: ReadableBuffer, /) -> int | None:
    """The data-parallel rank that a batch names; None if it names none. Its events are passed over, not read.

    Raises:
        WireError: broken msgpack before the rank, or a rank that is no integer.
    """

def encode_batch(batch: KVEventBatch, /, *, dialect: _Dialect = "sglang") -> bytes:
    """Write a batch as one engine's payload, byte for byte as that engine writes it.

    The dialects, by the engine versions that write them:

    - `sglang`: SGLang since September 2026, events as maps;
    - `sglang-array`: SGLang before that. A store has its salt, session and adapter slots only if one of them has a
      value. A `BlockStoredWithMetadata` is tagged `BlockStored` with the map after `medium`, as SGLang did;
    - `vllm`: vLLM since 0.24, events as maps;
    - `vllm-array`: vLLM 0.22 and 0.23.

    Maps carry a field with a value even if the engine does not declare it, after those it does, then
    `unknown_fields`. Where a dialect has no place for `metadata`, its salt goes into `cache_salt`. What decoding left
    out (`skipped`, `unread_fields`) is not written.

    Args:
        batch: the events; not changed.
        dialect: what to write.

    Raises:
        ConfigError: a dialect of another name.
        ValueError: a value that does not fit its field (a negative token id, a hash beyond 64 bits), or a field with
            a value for which the dialect's arrays have no place.
        TypeError: a value of a wrong type.
    """
