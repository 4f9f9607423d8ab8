"""Scripts that our caches do not repeat, each with what ours does instead."""

from collections.abc import Iterable, Mapping

from residency import OneBlock

LATE_NAME = (
    "A name is registered while pages of its adapter are live. In the reference it changes the ids of what is stored "
    "and removed from then on, so that removals name blocks that nobody was told of. Here pages keep their ids, and "
    "the name counts from when none of them is left."
)

LATE_LOOK_UP = (
    "A name is registered between a store and the next take. The reference's Rust core looks names up when events are "
    "taken and already says it; here, as in its Python core, events are as true as when they were recorded."
)

EXCEPTIONS: Mapping[str, str] = {
    "unified_full_late_lora_p1.python.jsonl": LATE_NAME,
    "unified_full_late_lora_p1.rust.jsonl": LATE_NAME,
    "unified_full_late_lora_p16.python.jsonl": LATE_NAME,
    "unified_full_late_lora_p16.rust.jsonl": LATE_NAME,
    "unified_full_late_lora_p64.python.jsonl": LATE_NAME,
    "unified_full_late_lora_p64.rust.jsonl": LATE_NAME,
    "unified_full_late_lora_dynamo_p1.rust.jsonl": LATE_LOOK_UP,
    "unified_full_late_lora_dynamo_p16.rust.jsonl": LATE_LOOK_UP,
    "unified_full_late_lora_dynamo_p64.rust.jsonl": LATE_LOOK_UP,
}
"""By file name: a sentence about behaviour. What is listed has to differ, so that the list stays true."""


def without_needless_host_stores(reference: Iterable[OneBlock], ours: Iterable[OneBlock]) -> list[OneBlock]:
    """A stream of the reference without the stores to host memory that say nothing true and new.

    In hybrid caches the reference announces the full-attention KV of each node whose window or state it copies to host
    memory: again if it has announced it before, and also if only the device has it. Here a store to host memory is
    announced when the full-attention KV has arrived there, and only then. So of the reference's stores to host memory
    those that ours does not have, in its place, are left out; the rest has to be equal.
    """
    kept = []
    rest = list(ours)
    for event in reference:
        if rest and event == rest[0]:
            rest.pop(0)
        elif event.kind == "BlockStored" and ("medium", "CPU_PINNED") in event.rest:
            continue
        kept.append(event)
    return kept
