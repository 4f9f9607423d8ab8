"""Stores whose blocks can be hashed again."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kvevents.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVEventBatch
from kvevents.hashing.names import HashForm

NO_TOKENS = "the store carries no tokens"
MASKED = "a masked group lists only the blocks it keeps"
UNUSABLE = "the store's fields are no tokens, sizes and hashes"


class Sample(NamedTuple):
    """A run of blocks with their tokens.

    Attributes:
        blocks: hashes as they came.
        parent: hash of the block above, None at the start of a prompt.
        tokens: ids; where blocks are made of pairs, all first members and the last pair's second.
        is_pairs: whether blocks are made of pairs.
        block_size: tokens (pairs) in a block.
        lora_name: adapter, by name.
        lora_id: adapter, by number.
        cache_salt: SGLang's salt.
        extra_keys: vLLM's keys, an entry a block; None where the store has none.
        is_told: whether the store would carry its adapter and salt: one for the GPU and full attention.
    """

    blocks: Sequence[BlockHash]
    parent: BlockHash | None
    tokens: list[int]
    is_pairs: bool
    block_size: int
    lora_name: str | None
    lora_id: int | None
    cache_salt: str | None
    extra_keys: Sequence[Sequence[Any] | None] | None
    is_told: bool

    def first(self) -> "Sample":
        """The first block alone."""
        keys = self.extra_keys and self.extra_keys[:1]
        tokens = self.tokens[: self.block_size + self.is_pairs]
        return self._replace(blocks=self.blocks[:1], tokens=tokens, extra_keys=keys)


def short(block: BlockHash) -> int:
    """A hash's last 64 bits: the same for all forms of one hash."""
    return block % 2**64 if isinstance(block, int) else int.from_bytes(block[-8:], "big")


def sample(event: BlockStored) -> Sample | str:
    """The sample that a store is, or why it is none."""
    blocks, units = listed(event.block_hashes), listed(event.token_ids)
    if blocks is None or units is None or not are_fields(event, blocks):
        return UNUSABLE
    if not blocks or not units or event.block_size < 1:
        return NO_TOKENS
    if len(units) != len(blocks) * event.block_size:
        return MASKED
    is_pairs = not isinstance(units[0], int)
    tokens = sequence(units, is_pairs=is_pairs)
    if tokens is None or not 0 <= min(tokens) <= max(tokens) < 2**64:
        return UNUSABLE
    if not -(2**63) <= (event.lora_id or 0) < 2**63 or not are_keys(event.extra_keys, len(blocks)):
        return UNUSABLE
    return Sample(
        blocks,
        event.parent_block_hash,
        tokens,
        is_pairs,
        event.block_size,
        event.lora_name or None,
        event.lora_id,
        event.cache_salt or None,
        event.extra_keys,
        (event.medium or "GPU").upper() == "GPU" and event.kv_cache_spec_kind in {None, "full_attention"},
    )


def listed(values: Any) -> list[Any] | None:
    """A field of several values as a list, be it an array or a tuple; None where it is no such field."""
    values = values.tolist() if hasattr(values, "tolist") else values
    return list(values) if isinstance(values, list | tuple) else None


def sequence(units: list[Any], *, is_pairs: bool) -> list[int] | None:
    """The ids of tokens, or of pairs (all first members and the last one's second); None where they are neither."""
    if not is_pairs:
        return units if all(isinstance(unit, int) for unit in units) else None
    for unit in units:
        match unit:
            case [int(), int()]:
                continue
            case _:
                return None
    return [*(unit[0] for unit in units), units[-1][1]]


def are_fields(event: BlockStored, blocks: list[Any]) -> bool:
    """Whether hashes, sizes and names are of the types that they have on the wire."""
    numbers = (event.block_size, event.lora_id or 0)
    texts = (event.medium, event.lora_name, event.cache_salt, event.kv_cache_spec_kind)
    hashes = blocks if event.parent_block_hash is None else [event.parent_block_hash, *blocks]
    return (
        all(isinstance(number, int) for number in numbers)
        and all(text is None or isinstance(text, str) for text in texts)
        and all(isinstance(block, int | bytes) for block in hashes)
    )


def are_keys(extra_keys: object, blocks: int) -> bool:
    """Whether extra keys are in vLLM's form, an entry a block at most."""
    if extra_keys is None:
        return True
    if not isinstance(extra_keys, list) or len(extra_keys) > blocks:
        return False
    entries = [entry for entry in extra_keys if entry is not None]
    return all(isinstance(entry, list) and all(map(is_key, entry)) for entry in entries)


def is_key(key: object) -> bool:
    match key:
        case str() | bytes():
            return True
        case [str(), int(offset)]:
            return -(2**63) <= offset < 2**63
        case _:
            return False


class Samples(NamedTuple):
    """The samples of a stream.

    Attributes:
        samples: in the order they came.
        unusable: blocks that are in none, by the reason why.
        form: how they carry hashes; None where the numbers fit both integer forms.
        digest_size: bytes of a digest where they carry digests.
    """

    samples: list[Sample]
    unusable: Counter[str]
    form: HashForm | None
    digest_size: int | None


def gather(events: Iterable[object], max_blocks: int) -> Samples:
    """The samples among `events`, until there are `max_blocks` blocks in them.

    Raises:
        TypeError: something among them is no event.
    """
    samples: list[Sample] = []
    unusable: Counter[str] = Counter()
    blocks = 0
    for index, event in enumerate(events):
        if not isinstance(event, BlockStored):
            if not isinstance(event, BlockRemoved | AllBlocksCleared):
                hint = "; of a batch, pass its events" if isinstance(event, KVEventBatch | bytes) else ""
                raise TypeError(f"events: expected KV cache events, got {type(event)} at position {index}{hint}")
            continue
        found = sample(event)
        if isinstance(found, str):
            unusable[found] += len(listed(event.block_hashes) or ())
            continue
        samples.append(found)
        blocks += len(found.blocks)
        if blocks >= max_blocks:
            break
    hashes = [block for found in samples for block in found.blocks]
    sizes = {len(block) for block in hashes if isinstance(block, bytes)}
    form: HashForm | None = None
    if sizes:
        form = "bytes"
    elif any(isinstance(block, int) and block < 0 for block in hashes):
        form = "signed"
    elif any(isinstance(block, int) and block >= 1 << 63 for block in hashes):
        form = "unsigned"
    return Samples(samples, unusable, form, sizes.pop() if len(sizes) == 1 else None)
