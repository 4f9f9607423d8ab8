"""Laws of pseudonymous captures: nothing of a secret is left, everything that a consumer compares is."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index_streams import IMAGE, SPACES, Path, Stream, streams
from kvevents._core.capture import Pseudonyms, Rewriter
from kvevents.errors import WireError
from kvevents.events import BlockHash, BlockRemoved, BlockStored, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.wire import Dialect, decode_batch, encode_batch
from strategies import DIALECTS, batches

NAMES = Pseudonyms(bytes(range(32)))
WIRE_NAMES = {
    *("type", "metadata", "BlockStored", "BlockRemoved", "AllBlocksCleared"),
    *BlockStored.__struct_fields__,
    *BlockRemoved.__struct_fields__,
}
FIELDS = {
    "BlockStored": {"type", "metadata", *BlockStored.__struct_fields__},
    "BlockRemoved": {"type", *BlockRemoved.__struct_fields__},
    "AllBlocksCleared": {"type"},
}
KEPT_NUMBERS = ("block_size", "group_idx", "kv_cache_spec_sliding_window")
KEPT_TEXTS = {"GPU", "CPU", "cpu", "CPU_PINNED", "DISK", "STORAGE", "FS", "OBJ", "EXTERNAL", ""}
ANY_DIALECT = st.sampled_from(DIALECTS)


def rewrite(batch: KVEventBatch | bytes, dialect: Dialect = "sglang", **keep: bool) -> bytes:
    payload = batch if isinstance(batch, bytes) else encode_batch(batch, dialect=dialect)
    return Rewriter(NAMES, **keep).rewrite(payload).payload


def leaves(value: Any) -> Iterator[Any]:
    """Every scalar in a value, keys of maps included."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def secrets(batch: KVEventBatch) -> Iterator[Any]:
    """Everything in a batch that is long enough not to be there by chance, but for what stays."""
    for event in batch.events:
        fields = msgspec.structs.asdict(event)
        for name in KEPT_NUMBERS:
            fields.pop(name, None)
        for leaf in leaves([fields, msgspec.to_builtins(fields.get("metadata"), builtin_types=(bytes,))]):
            is_text = isinstance(leaf, str | bytes) and len(leaf) >= 4
            if is_text or (isinstance(leaf, int) and abs(leaf) >= 2**32):
                yield leaf


def shape(value: Any) -> Any:
    """Which fields there are, in which order, and how many of what."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value)


@given(dialect=ANY_DIALECT, data=st.data())
def test_a_batch_loses_its_secrets_and_keeps_its_shape(dialect: Dialect, data: st.DataObject) -> None:
    batch = data.draw(batches(dialect))
    original = encode_batch(batch, dialect=dialect)
    written = rewrite(original)
    check_secrets(batch, written)
    check_shape(msgspec.msgpack.decode(original, strict=False), msgspec.msgpack.decode(written, strict=False))
    kept = decode_batch(rewrite(original, keep_hashes=True, keep_tokens=True), strict=False)
    for old, new in zip(decode_batch(original).events, kept.events, strict=True):
        for name in ("block_hashes", "parent_block_hash", "token_ids"):
            assert getattr(new, name, None) == getattr(old, name, None)
    with pytest.raises(WireError):
        rewrite(original[:-1])


def check_secrets(batch: KVEventBatch, written: bytes) -> None:
    there = set(map(repr, leaves(msgspec.msgpack.decode(written, strict=False))))
    numbers = [batch.attn_dp_rank]
    for event in batch.events:
        numbers += [getattr(event, name, None) for name in KEPT_NUMBERS]
    public = WIRE_NAMES | KEPT_TEXTS | {*numbers}
    for secret in secrets(batch):
        if secret in public or (isinstance(secret, bytes) and secret.decode(errors="replace") in public):
            continue
        assert repr(secret) not in there, f"{secret!r} is in {written!r}"
        if isinstance(secret, bytes):
            assert len(secret) < 8 or secret not in written


def check_shape(before: Any, after: Any) -> None:
    """Its frame, its events, and the order of their fields."""
    assert (after[0], after[2]) == (before[0], before[2])
    assert len(after[1]) == len(before[1])
    for old, new in zip(before[1], after[1], strict=True):
        if isinstance(old, list):
            assert len(new) == len(old)
            continue
        assert list(new) == [name for name in old if name in FIELDS[old["type"]]]
        for name, value in new.items():
            assert (value is None) == (old[name] is None)
            if name == "token_ids":
                assert shape(value) == shape(old[name])
            if name in KEPT_NUMBERS:
                assert value == old[name]


@given(st.lists(st.integers(-(2**63), 2**64 - 1) | st.binary(min_size=16, max_size=16), min_size=1, max_size=20))
def test_hashes_are_equal_afterwards_where_they_were_before_and_of_the_same_type(hashes: list[BlockHash]) -> None:
    removed = BlockRemoved([*hashes, hashes[0]])
    (event,) = decode_batch(rewrite(KVEventBatch(0.0, [removed], 0))).events
    assert isinstance(event, BlockRemoved)

    def key(block: BlockHash) -> int:
        return int.from_bytes(block[-8:], "big") if isinstance(block, bytes) else block % 2**64

    for left, new in zip(removed.block_hashes, event.block_hashes, strict=True):
        assert type(new) is type(left)
        assert isinstance(left, int) or (isinstance(new, bytes) and len(new) == len(left))
        assert key(new) == NAMES.block((key(left) + 2**63) % 2**64 - 2**63) % 2**64
    assert event.block_hashes[0] == event.block_hashes[-1]
    assert len(set(map(key, event.block_hashes))) == len(set(map(key, hashes)))


class Told(NamedTuple):
    """What the stores of a stream say of their blocks."""

    is_sane: bool
    """Each block is always said to be the same: below one parent, of one worker's block size, with the same tokens."""
    is_in_order: bool
    """Each parent comes before its children, or within the same batch."""


def told(stream: Stream) -> Told:
    said: dict[tuple[int, BlockHash], Any] = {}
    known: set[tuple[int, Any]] = set()
    in_order = True
    for batch in stream.batches:
        stores = [event for event in batch.events if isinstance(event, BlockStored)]
        known |= {(batch.worker, block) for event in stores for block in event.block_hashes if event.token_ids}
        for event in stores:
            size, parent = event.block_size, event.parent_block_hash
            if event.token_ids and size != stream.engines[batch.worker].size:
                return Told(is_sane=False, is_in_order=False)
            in_order &= parent is None or (batch.worker, parent) in known
            if len(event.token_ids) != size * len(event.block_hashes):
                continue
            for index, block in enumerate(event.block_hashes):
                what = (parent, event.token_ids[index * size : (index + 1) * size])
                if said.setdefault((batch.worker, block), what) != what:
                    return Told(is_sane=False, is_in_order=False)
                parent = block
    return Told(is_sane=True, is_in_order=in_order)


@given(streams())
def test_an_index_holds_and_matches_the_same_under_the_new_names(stream: Stream) -> None:
    """Holdings are the same blocks under new names, and each prompt matches as far under its new name."""
    originals, renamed = (PrefixIndex(stream.block_size) for _ in range(2))
    rewriters = {0: Rewriter(NAMES), 1: Rewriter(NAMES)}
    for batch in stream.batches:
        payload = encode_batch(KVEventBatch(0.0, batch.events, batch.rank), dialect="vllm")
        originals.apply(f"w{batch.worker}", payload)
        renamed.apply(f"w{batch.worker}", rewriters[batch.worker].rewrite(payload).payload)
    for worker in ("w0", "w1"):
        held = originals.holdings(worker)
        expected = {
            rank: {tier: {NAMES.block(block) for block in blocks} for tier, blocks in tiers.items()}
            for rank, tiers in held.items()
        }
        assert renamed.holdings(worker) == expected
    how = told(stream)
    sizes = {engine.size for engine in stream.engines}
    has_images = stream.images and any(IMAGE in path.choices for path in stream.paths)
    if not how.is_sane or has_images or len(sizes) > 1 or any(engine.pairs for engine in stream.engines):
        return
    (size,) = sizes
    for path in stream.paths:
        space, tokens = SPACES[path.space], path.tokens(size, pairs=False)
        before = matched(originals, tokens, **space)
        after = matched(renamed, NAMES.prompt(tokens, size, **space), **new_space(space))
        if how.is_in_order:
            assert after == before
        else:
            assert all(depth <= before.get(worker, 0) for worker, depth in after.items())


def matched(index: PrefixIndex, tokens: Any, **space: Any) -> dict[tuple[str, int | None], int]:
    return {(match.worker, match.dp_rank): match.total for match in index.match(tokens, **space)}


def new_space(space: dict[str, Any]) -> dict[str, Any]:
    return {name: NAMES.number(value) if name == "lora_id" else NAMES.text(value) for name, value in space.items()}


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("size", [1, 3, 4, 16])
def test_prompts_that_share_a_beginning_share_it_under_their_new_names_across_workers(
    size: int, space: dict[str, Any]
) -> None:
    """The second worker names its blocks otherwise (another hash seed), cuts its events otherwise, and has a branch."""
    paths = [Path(0, choices) for choices in ((1, 2, 1, 1), (1, 2, 2), (1, 2, 1, 0, 1), (0, 1))]
    originals, renamed = (PrefixIndex(size) for _ in range(2))
    for worker, step in (("a", 1), ("b", 3)):
        rewriter = Rewriter(NAMES)
        for path in paths if worker == "a" else paths[1:]:
            tokens, hashes = path.tokens(size, pairs=False), path.hashes(step)
            for start in range(0, len(hashes), step):
                end = min(start + step, len(hashes))
                parent = hashes[start - 1] if start else None
                event = BlockStored(
                    hashes[start:end], parent, tokens[start * size : end * size], size, medium="GPU", **space
                )
                payload = encode_batch(KVEventBatch(0.0, [event], 0), dialect="vllm")
                originals.apply(worker, payload)
                renamed.apply(worker, rewriter.rewrite(payload).payload)
    for path in [*paths, Path(0, (1, 2, 1, 2)), Path(0, (2,))]:
        tokens = path.tokens(size, pairs=False)
        new_tokens = NAMES.prompt(tokens, size, **space)
        assert matched(renamed, new_tokens, **new_space(space)) == matched(originals, tokens, **space)
        assert matched(renamed, NAMES.prompt(tokens, size)) == matched(originals, tokens)
    assert max(matched(originals, paths[2].tokens(size, pairs=False), **space).values()) == 5


@given(st.binary(max_size=60))
def test_what_is_no_batch_is_refused(data: bytes) -> None:
    try:
        decode_batch(data, strict=False)
    except WireError:
        with pytest.raises(WireError):
            rewrite(data)
    else:
        assert decode_batch(rewrite(data), strict=False)
