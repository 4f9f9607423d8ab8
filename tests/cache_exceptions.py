"""Scripts that our caches do not repeat, each with what ours does instead."""

from collections.abc import Mapping

LATE_NAME = (
    "A name is registered while pages of its adapter are live. In the reference it changes the ids of what is stored "
    "and removed from then on, so that removals name blocks that nobody was told of. Here pages keep their ids, and "
    "the name counts from when none of them is left."
)

EXCEPTIONS: Mapping[str, str] = {
    "unified_full_late_lora_p1.python.jsonl": LATE_NAME,
    "unified_full_late_lora_p1.rust.jsonl": LATE_NAME,
    "unified_full_late_lora_p16.python.jsonl": LATE_NAME,
    "unified_full_late_lora_p16.rust.jsonl": LATE_NAME,
    "unified_full_late_lora_p64.python.jsonl": LATE_NAME,
    "unified_full_late_lora_p64.rust.jsonl": LATE_NAME,
    "unified_full_late_lora_dynamo_p1.python.jsonl": LATE_NAME,
    "unified_full_late_lora_dynamo_p1.rust.jsonl": LATE_NAME,
    "unified_full_late_lora_dynamo_p16.python.jsonl": LATE_NAME,
    "unified_full_late_lora_dynamo_p16.rust.jsonl": LATE_NAME,
    "unified_full_late_lora_dynamo_p64.python.jsonl": LATE_NAME,
    "unified_full_late_lora_dynamo_p64.rust.jsonl": LATE_NAME,
}
"""By file name: a sentence about behaviour. What is listed has to differ, so that the list stays true."""
