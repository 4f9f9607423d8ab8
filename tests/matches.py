"""Every prefix match that a recorded SGLang script made, and an index that knows what was announced by then.

A script's events are taken now and then. A match is exact where nothing had changed since the last take, or nothing
changes any more before the next one. In between, the moment lies somewhere inside of the next batch: the batch is told
one block at a time, and matches find their moments in it in the order in which they were made.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from goldens import Script
from kvevents.events import BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.wire import decode_batch

CHANGES = {"insert", "evict", "evict_host", "reset", "hicache_poll", "load_back", "insert_host"}
"""Operations after which the next events tell something new."""


class Found(NamedTuple):
    """Tokens of a prompt that are cached."""

    device: int
    host: int


class Asked(NamedTuple):
    """A match.

    Attributes:
        step: as recorded.
        cache: what the cache found.
        said: what the index said at the match's moment, or at each moment that may be it.
        is_exact: the moment is known.
    """

    step: dict[str, Any]
    cache: Found
    said: list[Found]
    is_exact: bool


class Matches:
    """An index that is fed with a script's batches."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.page_size = script.header["page_size"]
        self.index = PrefixIndex(self.page_size)
        self._names: dict[str | None, str] = {}

    def __iter__(self) -> Iterator[Asked]:
        between: list[dict[str, Any]] = []
        """Matches with changes before them that are not taken yet."""
        after: list[dict[str, Any]] = []
        """Those of them with no change after them."""
        changed = False
        for step in self.script.steps:
            if step["op"] == "register_lora":
                self._names[step["extra_key"]] = step["lora_name"]
            elif step["op"] == "take_events":
                batch = decode_batch(bytes.fromhex(step["msgpack_hex"]))
                yield from self._inside(batch.events, between)
                yield from (Asked(match, recorded(match), [self.ask(match)], is_exact=True) for match in after)
                between, after, changed = [], [], False
            elif step["op"] in CHANGES:
                between, after, changed = between + after, [], True
            elif step["op"] == "match":
                if changed:
                    after.append(step)
                else:
                    yield Asked(step, recorded(step), [self.ask(step)], is_exact=True)

    def _inside(self, events: Sequence[KVCacheEvent], matches: list[dict[str, Any]]) -> Iterator[Asked]:
        if not matches:
            self._feed(events)
            return
        said: list[list[Found]] = [[] for _ in matches]
        for told in [[], *([event] for event in singly(events, self.page_size))]:
            self._feed(told)
            for match, answers in zip(matches, said, strict=True):
                answers.append(self.ask(match))
        first = 0
        for match, answers in zip(matches, said, strict=True):
            possible = answers[first:]
            if recorded(match) in possible:
                first += possible.index(recorded(match))
            yield Asked(match, recorded(match), possible, is_exact=False)

    def _feed(self, events: Sequence[KVCacheEvent]) -> None:
        report = self.index.apply("w", KVEventBatch(0.0, list(events)))
        assert (report.error, report.skipped) == (None, [])

    def ask(self, step: dict[str, Any]) -> Found:
        name = self._names.get(step.get("extra_key"))
        matches = self.index.match(step["tokens"], lora_name=name, cache_salt=step.get("cache_salt"))
        device, total = (matches[0].tiers["GPU"], matches[0].total) if matches else (0, 0)
        return Found(device * self.page_size, (total - device) * self.page_size)


def recorded(step: dict[str, Any]) -> Found:
    return Found(step["result"]["device_prefix_len"], step["result"]["host_hit_length"])


def singly(events: Sequence[KVCacheEvent], page_size: int) -> Iterator[KVCacheEvent]:
    """The same events with one block each."""
    for event in events:
        if isinstance(event, BlockRemoved):
            for block in event.block_hashes:
                yield BlockRemoved([block], event.medium)
        elif isinstance(event, BlockStored):
            above = event.parent_block_hash
            for index, block in enumerate(event.block_hashes):
                tokens = event.token_ids[index * page_size : (index + 1) * page_size]
                yield BlockStored(
                    [block],
                    above,
                    tokens,
                    page_size,
                    medium=event.medium,
                    cache_salt=event.cache_salt,
                    lora_name=event.lora_name,
                )
                above = block
        else:
            yield event


class Told:
    """What of a script's namespaces is on the wire: an extra key only by the adapter's name, once it has one."""

    def __init__(self) -> None:
        self._named: set[str | None] = {None}
        self._mixed: set[str | None] = set()

    def follow(self, step: dict[str, Any]) -> None:
        if step["op"] == "register_lora":
            self._named.add(step["extra_key"])
        elif step["op"] in CHANGES and step.get("extra_key") not in self._named:
            self._mixed.add(step.get("cache_salt") or None)

    def knows(self, step: dict[str, Any]) -> bool:
        """Whether a match is in a namespace of its own; else blocks of other namespaces look like its own."""
        is_plain = step.get("extra_key") is None
        salt = step.get("cache_salt") or None
        return step.get("extra_key") in self._named and not (is_plain and salt in self._mixed)
