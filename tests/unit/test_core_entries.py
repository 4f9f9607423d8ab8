"""Every entry of the extension, called with what nobody should pass: it answers, or raises an error of the house."""

import inspect
import math
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from kvevents import _core
from kvevents._core.block_pool import BlockPool
from kvevents._core.capture import Pseudonyms, Rewriter, measure
from kvevents._core.coalescing import Coalescer
from kvevents._core.hashing import (
    HashChain,
    announced_ids,
    block_digests,
    block_hashes,
    page_digests,
    solve_none_hash,
)
from kvevents._core.index import Found, PrefixIndex
from kvevents._core.learned import LearnedIndex, PromptChain
from kvevents._core.lint import Linter
from kvevents._core.prompt import byte_ids, read_request
from kvevents._core.recorder import AdapterNames, CacheGroup, EventRecorder, merges
from kvevents._core.relay import CompactedLog
from kvevents._core.routing import Candidates, Judgement, Table
from kvevents._core.slots import PagePool
from kvevents._core.tokens import TokenPages
from kvevents._core.wire import batch_rank, decode_batch, encode_batch
from kvevents._core.yardstick import sha256_floor
from kvevents.errors import KVEventsError
from kvevents.events import BlockRemoved, BlockStored, KVEventBatch

BATCH = KVEventBatch(0.0, [BlockStored([1, 2], None, [5, 6], 1, medium="GPU"), BlockRemoved([1], "GPU")])
DATA = encode_batch(BATCH)
TOKENS = [1, 2, 3, 4]
CHAIN = HashChain.root(2).extend(TOKENS)
VLLM = HashChain.root(2, scheme="vllm-sha256-cbor").extend(TOKENS)
DIGEST = "ab" * 32
NAMES = Pseudonyms(bytes(32))


class Hostile:
    """Answers nothing but with an error of its own."""

    def fail(self, *_: Any) -> Any:
        raise KeyError("hostile")

    __len__ = __iter__ = __getitem__ = __index__ = __float__ = __eq__ = __hash__ = __bool__ = fail


JUNK: list[Any] = [
    *(None, True, 1.5, math.nan, -math.inf, 1j, object(), Hostile(), Hostile, len, _core),
    *(-1, 0, 1, 2**16, 2**35, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**70, -(2**31), -(2**63), -(2**63) - 1, -(2**70)),
    *("", "x", "\udfff", "\0", "x" * 10_000, "GPU", "sglang", "vllm-builtin", "dynamo", "zz" * 32),
    *(b"", b"\xc1", b"x" * 31, b"x" * 32, DATA, DATA[:-1], bytearray(3), memoryview(b"abcdef")[::2]),
    *([], [None], [-1], [0], [1, 2, 3], [2**64], ["x"], [1.5], [[]], [(1, 2)], [[["x", 0]]], [Hostile()], [DIGEST]),
    *((), (1,), {}, {1: 2}, {"a": None}, {1}, range(3), iter([1])),
    *(
        array("i", [-1]),
        array("d", [1.0]),
        array("b", [1]),
        array("Q", [2**64 - 1]),
        memoryview(array("q", [1])).cast("b"),
    ),
    *(memoryview(bytes(4)).cast("b", (2, 2)), BATCH, BATCH.events[0], KVEventBatch(0.0, [None]), CHAIN, VLLM),  # type: ignore[list-item]
]
"""Values of every kind that can be passed, some of them right in some places."""


class Entry(NamedTuple):
    """A call that is right."""

    make: Callable[[], Any]
    arguments: list[Any]
    named: dict[str, Any]


def entry(make: Callable[[], Any], *arguments: Any, **named: Any) -> Entry:
    return Entry(make, [*arguments], named)


HASHING = {"scheme": "vllm-sha256", "extra_key": "a", "cache_salt": "s", "bigram": False, "hash_seed": "0"}
VLLM_HASHING = HASHING | {"adapter_path": "/a", "key_form": "bare", "none_hash": 1}
BLOCKS = VLLM_HASHING | {"lora_id": None, "extra_keys": [None], "parent_digest": None}
INDEX: dict[str, Any] = {
    "keep_tokens": True,
    "max_pending_blocks": 9,
    "max_pending_bytes": 9_000,
    "max_pending_age_s": 1.0,
    "max_parked_blocks": 9,
    "max_parked_bytes": 9_000,
    "max_parked_age_s": 1.0,
    "max_sources": 9,
}
EVENTS = {"max_event_blocks": 9, "max_event_bytes": 99}


def recorder() -> EventRecorder:
    return EventRecorder(2)


def index() -> PrefixIndex:
    made = PrefixIndex(1, **INDEX)
    made.apply("w", DATA)
    return made


def pool() -> BlockPool:
    made = BlockPool(9, 2, "vllm-sha256-cbor", recorder())
    made.take(2)
    return made


def pages() -> PagePool:
    """Its first page is lent, the second one in the cache."""
    made = PagePool(4, 2)
    made.lend(2)
    made.adopt([2, 3])
    return made


def log() -> CompactedLog:
    made = CompactedLog()
    made.add(DATA)
    return made


def learned() -> LearnedIndex:
    made = LearnedIndex(2, 9)
    made.learn(blocks(), 0, 1.0, 2.0, 0.0)
    return made


def blocks() -> PromptChain:
    return LearnedIndex(2, 9).chain(TOKENS, None, None, None, None, False)


LAW = (2.0, 0.2, 1.0)
TABLE: dict[str, Any] = {
    "trust": 0.5,
    "half_life_s": 5.0,
    "tiers": (1.0, 0.9, 0.6, 0.5),
    "memory_tokens": 9.0,
    "request_tokens": 1.0,
}


def table() -> Table:
    made = Table(**TABLE)
    made.add("w", 0, 0, "live", 0.0)
    return made


def judgement() -> Judgement:
    found = Found([("w", 0, 1, (1, 0, 0, 0), "live")])
    return table().judge(Candidates([0]), found, learned(), blocks(), 4, True, 1.0, 0.0, LAW)


ENTRIES = {
    "block_pool.BlockPool": entry(lambda: BlockPool, 9, 2, "vllm-sha256-cbor", recorder()),
    "block_pool.BlockPool.evict": entry(lambda: pool().evict, 1),
    "block_pool.BlockPool.hold": entry(lambda: pool().hold, [1], None),
    "block_pool.BlockPool.lookup": entry(lambda: pool().lookup, VLLM),
    "block_pool.BlockPool.parked": entry(lambda: pool().parked, [1]),
    "block_pool.BlockPool.publish": entry(lambda: pool().publish, [1, 2], VLLM, TOKENS, session_id="s"),
    "block_pool.BlockPool.release": entry(lambda: pool().release, [1]),
    "block_pool.BlockPool.slots": entry(lambda: pool().slots, [1]),
    "block_pool.BlockPool.take": entry(lambda: pool().take, 1),
    "capture.Pseudonyms": entry(lambda: Pseudonyms, bytes(32)),
    "capture.Pseudonyms.block": entry(lambda: NAMES.block, 1),
    "capture.Pseudonyms.number": entry(lambda: NAMES.number, 1),
    "capture.Pseudonyms.prompt": entry(lambda: NAMES.prompt, TOKENS, 2, lora_name="a", lora_id=1, cache_salt="s"),
    "capture.Pseudonyms.text": entry(lambda: NAMES.text, "s"),
    "capture.Rewriter": entry(lambda: Rewriter, NAMES, keep_hashes=True, keep_tokens=True, remembered_blocks=9),
    "capture.Rewriter.rewrite": entry(lambda: Rewriter(NAMES).rewrite, DATA),
    "capture.measure": entry(lambda: measure, DATA),
    "coalescing.Coalescer": entry(lambda: Coalescer, "chain", dialect="vllm", from_start=True, **EVENTS),
    "coalescing.Coalescer.add": entry(lambda: Coalescer().add, DATA),
    "coalescing.Coalescer.take_batch": entry(lambda: Coalescer().take_batch, ts=1.0),
    "hashing.HashChain.extend": entry(lambda: CHAIN.extend, TOKENS),
    "hashing.HashChain.root": entry(lambda: HashChain.root, 2, **VLLM_HASHING),
    "hashing.HashChain.split": entry(lambda: CHAIN.split, 1),
    "hashing.announced_ids": entry(
        lambda: announced_ids, [DIGEST], extra_key="a", cache_salt="s", event_format="dynamo", named=True
    ),
    "hashing.block_digests": entry(lambda: block_digests, TOKENS, 2, **BLOCKS),
    "hashing.block_hashes": entry(lambda: block_hashes, TOKENS, 2, **BLOCKS, event_format="default", named=False),
    "hashing.page_digests": entry(lambda: page_digests, TOKENS, 2, above=DIGEST, cache_salt="s", bigram=False),
    "hashing.solve_none_hash": entry(lambda: solve_none_hash, TOKENS, 1, 2),
    "index.PrefixIndex": entry(lambda: PrefixIndex, 1, **INDEX),
    "index.PrefixIndex.add_worker": entry(
        lambda: index().add_worker, "v", block_size=1, counted=True, groups=[(1, "mamba", None)]
    ),
    "index.PrefixIndex.apply": entry(lambda: index().apply, "w", DATA, seq=1, dp_rank=0),
    "index.PrefixIndex.apply_run": entry(lambda: index().apply_run, "w", [(1, DATA)], dp_rank=0),
    "index.PrefixIndex.clear_worker": entry(lambda: index().clear_worker, "w", 0),
    "index.PrefixIndex.dump_events": entry(lambda: index().dump_events, "w"),
    "index.PrefixIndex.holdings": entry(lambda: index().holdings, "w"),
    "index.Found": entry(lambda: Found, [("w", 0, 1, (1, 0, 0, 0), "live")]),
    "index.PrefixIndex.find": entry(lambda: index().find, TOKENS, "a", 1, "s", b"\x90"),
    "index.PrefixIndex.match": entry(lambda: index().match, TOKENS, "a", 1, "s", b"\x90"),
    "index.PrefixIndex.match_many": entry(lambda: index().match_many, [(TOKENS, "a", 1, "s", b"\x90")]),
    "index.PrefixIndex.remove_worker": entry(lambda: index().remove_worker, "w"),
    "index.PrefixIndex.restore": entry(lambda: index().restore, index().snapshot()),
    "index.PrefixIndex.restore_worker": entry(
        lambda: index().restore_worker, "w", (index().snapshot_worker("w") or [])[0], seq=1, dp_rank=None
    ),
    "index.PrefixIndex.set_state": entry(lambda: index().set_state, "w", 0, "live"),
    "index.PrefixIndex.snapshot_worker": entry(lambda: index().snapshot_worker, "w", None),
    "index.PrefixIndex.explore": entry(lambda: index().explore, None, 1, 9, 9, [bytes(8)]),
    "index.PrefixIndex.trail": entry(lambda: index().trail, TOKENS, "a", 1, "s", None),
    "prompt.byte_ids": entry(lambda: byte_ids, "text"),
    "prompt.read_request": entry(lambda: read_request, b'{"prompt": [1]}'),
    "lint.Linter": entry(lambda: Linter, block_size=2, is_whole=True, remembered_blocks=9),
    "lint.Linter.check": entry(lambda: Linter().check, DATA),
    "recorder.AdapterNames.remove": entry(lambda: AdapterNames().remove, "a", 1, {"a": "b"}, "default"),
    "recorder.AdapterNames.store": entry(lambda: AdapterNames().store, "a", 1, {"a": "b"}, "default"),
    "recorder.CacheGroup": entry(lambda: CacheGroup, 1, "mamba", sliding_window=4),
    "recorder.EventRecorder": entry(
        lambda: EventRecorder, 2, coalesce="chain", event_format="dynamo", enabled=True, lora_names={}, **EVENTS
    ),
    "recorder.EventRecorder.announced_ids": entry(lambda: recorder().announced_ids, CHAIN),
    "recorder.EventRecorder.remove": entry(lambda: recorder().remove, CHAIN, medium="GPU", group=None),
    "recorder.EventRecorder.store": entry(
        lambda: recorder().store, CHAIN, TOKENS, medium="GPU", session_id="s", group=None
    ),
    "recorder.EventRecorder.take_batch": entry(lambda: recorder().take_batch, ts=1.0, dp_rank=1, dialect="vllm"),
    "recorder.merges": entry(lambda: merges, BATCH.events[0], BATCH.events[1]),
    "learned.LearnedIndex": entry(lambda: LearnedIndex, 2, 9),
    "learned.LearnedIndex.chain": entry(lambda: learned().chain, TOKENS, "a", 1, "s", b"\x90", False),
    "learned.LearnedIndex.depths": entry(lambda: learned().depths, blocks(), [(0, 1.0)]),
    "learned.LearnedIndex.expire": entry(lambda: learned().expire, 1.0),
    "learned.LearnedIndex.forget": entry(lambda: learned().forget, 0),
    "learned.LearnedIndex.held": entry(lambda: learned().held, 0),
    "learned.LearnedIndex.learn": entry(lambda: learned().learn, blocks(), 0, 1.0, 2.0, 3.0),
    "learned.LearnedIndex.meet": entry(lambda: learned().meet, TOKENS, "a", 1, "s", b"\x90", False, 0, 1.0, 0.0),
    "learned.LearnedIndex.works": entry(lambda: learned().works, blocks(), [(0, 1)], 1.0),
    "relay.CompactedLog.add": entry(lambda: log().add, DATA),
    "relay.CompactedLog.batches": entry(lambda: log().batches, dialect="vllm", max_bytes=99),
    "relay.Remains.confirm": entry(lambda: log().remains().confirm, DATA),
    "routing.Candidates": entry(lambda: Candidates, [0, 1]),
    "routing.Judgement.facts": entry(lambda: judgement().facts, 0),
    "routing.Judgement.last_chosen": entry(lambda: judgement().last_chosen, 0),
    "routing.Judgement.score": entry(lambda: judgement().score, 0),
    "routing.Table": entry(lambda: Table, **TABLE),
    "routing.Table.add": entry(lambda: table().add, "w", 0, 0, "live", 0.0),
    "routing.Table.computed": entry(lambda: table().computed, 1),
    "routing.Table.end": entry(lambda: table().end, 1),
    "routing.Table.judge": entry(
        lambda: table().judge, Candidates([0]), Found([]), learned(), blocks(), 4, True, 1.0, 0.0, LAW
    ),
    "routing.Table.load": entry(lambda: table().load, 0),
    "routing.Table.place": entry(lambda: table().place, judgement(), 0, learned(), 1, False),
    "routing.Table.remove": entry(lambda: table().remove, 0),
    "routing.Table.report": entry(lambda: table().report, 0, 1, 1, 1, 0.0),
    "routing.Table.set_holder": entry(lambda: table().set_holder, 0, 1),
    "routing.Table.set_source": entry(lambda: table().set_source, 0, "live"),
    "routing.Table.set_trust": entry(lambda: table().set_trust, 0, 0.5),
    "routing.Table.set_up": entry(lambda: table().set_up, 0, True, 0.0),
    "slots.PagePool": entry(lambda: PagePool, 4, 2),
    "slots.PagePool.adopt": entry(lambda: pages().adopt, [0, 1]),
    "slots.PagePool.check": entry(lambda: pages().check, [0, 1]),
    "slots.PagePool.free": entry(lambda: pages().free, [0, 1]),
    "slots.PagePool.lend": entry(lambda: pages().lend, 1),
    "slots.PagePool.release": entry(lambda: pages().release, [2, 3]),
    "tokens.TokenPages": entry(lambda: TokenPages, TOKENS, 2, bigram=False),
    "tokens.TokenPages.common": entry(lambda: TokenPages(TOKENS, 2).common, TokenPages(TOKENS, 2), 0),
    "tokens.TokenPages.cut": entry(lambda: TokenPages(TOKENS, 2).cut, 0, 1),
    "tokens.TokenPages.key": entry(lambda: TokenPages(TOKENS, 2).key, 0),
    "wire.batch_rank": entry(lambda: batch_rank, DATA),
    "wire.decode_batch": entry(lambda: decode_batch, DATA, strict=False),
    "wire.encode_batch": entry(lambda: encode_batch, BATCH, dialect="sglang"),
    "yardstick.sha256_floor": entry(lambda: sha256_floor, array("I", TOKENS), 2),
}


def entries() -> Iterator[str]:
    """What of the extension takes arguments."""
    for module in filter(inspect.ismodule, vars(_core).values()):
        for name, thing in vars(module).items():
            yield from takers(f"{module.__name__.rpartition('.')[2]}.{name}", thing)


def takers(name: str, thing: Any) -> Iterator[str]:
    if name.rpartition(".")[2].startswith("_") or not callable(thing):
        return
    if has_parameters(thing):
        yield name
    if inspect.isclass(thing):
        for member in vars(thing):
            yield from takers(f"{name}.{member}", getattr(thing, member))


def has_parameters(thing: Any) -> bool:
    try:
        signature = inspect.signature(thing)
    except ValueError:
        return False
    return any(name != "self" for name in signature.parameters)


def test_every_entry_that_takes_arguments_is_called_here() -> None:
    assert not set(entries()) - ENTRIES.keys(), "a new one goes into ENTRIES with arguments that are right"
    assert not ENTRIES.keys() - set(entries()), "these are gone"


@pytest.mark.parametrize("name", ENTRIES)
def test_what_fits_is_taken(name: str) -> None:
    made = ENTRIES[name]
    made.make()(*made.arguments, **made.named)


@pytest.mark.parametrize("name", ENTRIES)
def test_what_does_not_fit_is_an_error_of_the_house(name: str) -> None:
    make, arguments, named = ENTRIES[name]
    for junk in JUNK:
        for place in range(len(arguments)):
            is_refused(make(), [*arguments[:place], junk, *arguments[place + 1 :]], named)
        for key in named:
            is_refused(make(), arguments, named | {key: junk})
    assert is_refused(make(), [*arguments, *[None] * 9], named)
    assert is_refused(make(), arguments, named | {"nobody": 1})


def is_refused(call: Callable[..., Any], arguments: list[Any], named: dict[str, Any]) -> bool:
    """Whether it is refused as it should; an error that an argument itself raises goes through as it is."""
    error = error_of(call, arguments, named)
    if isinstance(error, KeyError | NotImplementedError):
        assert str(error) in {"'hostile'", "multi-dimensional sub-views are not implemented"}
    return error is not None and str(error) != ""


def error_of(call: Callable[..., Any], arguments: list[Any], named: dict[str, Any]) -> Exception | None:
    try:
        call(*arguments, **named)
    except (KVEventsError, TypeError, ValueError, IndexError, KeyError, NotImplementedError) as error:
        return error
    return None
