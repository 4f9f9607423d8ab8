"""Scripts that our caches do not repeat, each with what ours does instead."""

from collections.abc import Mapping

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
