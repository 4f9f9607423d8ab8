"""Metrics of the index: what is believed to be held, and what could not be used."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kvevents.server.metrics.family import NO_LABELS, Family, counter, gauge, labels

if TYPE_CHECKING:
    from kvevents.server.service import Service

_ON = ("worker", "rank")

BLOCKS = gauge(
    "index_blocks",
    "Distinct blocks of the index that anyone holds.",
    "Far fewer than all workers hold: they share prefixes. Falls with clears and restarts.",
)
KNOWN = gauge(
    "index_known_blocks",
    "Blocks known of the worker, with those that it does not hold but has blocks below of.",
    "Much more than held: blocks in the middle of prompts are evicted before those below them.",
    *_ON,
)
MEMORY_BYTES = gauge(
    "index_memory_bytes",
    "Memory of the index, estimated.",
    "Grows with the blocks that workers hold; docs/deploy.md says how much a block takes. Growth without blocks is a "
    "defect.",
)
IGNORED = counter(
    "index_ignored_batches",
    "Batches that came for removed workers.",
    "A few after each removal. More: an engine publishes for one that was removed by mistake.",
)
HELD = gauge(
    "index_held_blocks",
    "Blocks that the worker holds, in blocks of the engine, by tier.",
    "Compare with the engine's own figure of used cache: much less means that news is missing; `kvevents diff` finds "
    "which. A worker at 0 that computes: its events do not arrive.",
    *_ON,
    "tier",
)
SKIPPED = counter(
    "index_skipped_events",
    "Events that could not be used, by code.",
    "`unknown-tag`: a newer engine, harmless. Any other: the source is `degraded`, and the router's log says what was "
    "expected and what came.",
    *_ON,
    "code",
)
WAITING: Mapping[str, Family] = {
    field: gauge(f"index_{field}_blocks", f"Blocks that {meaning}.", advice, *_ON)
    for field, meaning, advice in (
        (
            "pending",
            "wait for the block they follow",
            "Stays near 0. Stays high: stores were lost, so that what follows them finds no place.",
        ),
        (
            "parked",
            "are held without a known place",
            "Usual with windows and host tiers whose stores carry no tokens; they do not count as hits.",
        ),
        (
            "unaligned",
            "are parked since they came by stores with more or fewer tokens than they cover",
            "Usual with sliding windows. With full attention: the block size is not the one that was told.",
        ),
    )
}
COUNTERS: Mapping[str, Family] = {
    field: counter(f"index_{field}_{unit}", meaning, advice, *_ON)
    for field, unit, meaning, advice in (
        ("events", "applied", "Events applied.", "Few blocks an event: coalescing would save work."),
        ("stored", "blocks", "Blocks stored.", "The rate at which the worker's cache turns over, with those removed."),
        ("removed", "blocks", "Blocks (copies) removed.", "As many as are stored: the cache is full, and works."),
        ("cleared", "events", "Clears.", "Flushes of the engine's cache: weights were updated, or it restarted."),
        (
            "removal_misses",
            "blocks",
            "Removals of blocks that were not held there.",
            "Stores were lost, or the engine announces a tier under two names.",
        ),
        (
            "dropped",
            "blocks",
            "Pending and parked blocks dropped, since they were too many or too old.",
            "Stores are being lost for good, and the source is `degraded`.",
        ),
        (
            "partial",
            "pages",
            "Partial pages stored: shorter than the engine's blocks, known by hash only.",
            "They are in no match; some engines announce the unfinished end of a prompt.",
        ),
        (
            "refused",
            "events",
            "Stores that contradict the block size.",
            "The engine's block size is not the one it told: none of these blocks can be a hit.",
        ),
        ("duplicates", "batches", "Batches whose number had been applied before.", "Usual beside replays; harmless."),
    )
}
FAMILIES = (BLOCKS, MEMORY_BYTES, IGNORED, HELD, KNOWN, SKIPPED, *WAITING.values(), *COUNTERS.values())


def render(service: "Service") -> Iterator[str]:
    """Lines of the index, family by family."""
    stats = service.fleet.index.stats()
    yield BLOCKS.render([(NO_LABELS, stats.blocks)])
    yield MEMORY_BYTES.render([(NO_LABELS, stats.memory_bytes)])
    yield IGNORED.render([(NO_LABELS, stats.ignored_batches)])
    at = [(labels(worker=source.worker, rank=source.dp_rank or 0), source) for source in stats.sources]
    yield HELD.render((f'{text},tier="{tier}"', blocks) for text, one in at for tier, blocks in one.tiers.items())
    yield KNOWN.render((text, one.blocks) for text, one in at)
    yield SKIPPED.render((f'{text},code="{code}"', count) for text, one in at for code, count in one.skipped.items())
    for field, family in (*WAITING.items(), *COUNTERS.items()):
        yield family.render((text, getattr(one, field)) for text, one in at)
