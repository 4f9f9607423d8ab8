"""Metrics of prompts: which could be read as the engine's own tokens, and which only stand in for them."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kvevents.server.metrics.family import NO_LABELS, Family, counter, labels

if TYPE_CHECKING:
    from kvevents.server.service import Service

READ = counter(
    "prompts_read",
    "Prompts read, by what they were given as; those of /route and /query too.",
    "Beside kvevents_prompts_total, which counts those that were placed.",
    "source",
)
APPROXIMATE = counter(
    "approximate_prompts",
    "Texts and chats whose bytes stood in for token ids, by reason.",
    "Such prompts are routed by what was sent where before, not by events. `no_tokenizer`: give the router the "
    "model's. `busy`, `timeout`: more tokenizing than the router has CPU for. `disagrees`: its tokenizer or template "
    "is not the engine's. `failed`, `template`: see the router's log.",
    "reason",
)
COUNTERS: Mapping[str, Family] = {
    field: counter(name, meaning, advice)
    for field, name, meaning, advice in (
        (
            "refused",
            "refused_prompts",
            "Bodies that no engine could take: no JSON, or token ids that are none.",
            "A broken client; it is told what was expected.",
        ),
        (
            "tokenized",
            "tokenized_prompts",
            "Texts and chats that a tokenizer made into ids.",
            "CPU time of the router.",
        ),
        (
            "agreed",
            "agreeing_prompts",
            "Prompts of which the engine counted as many tokens as were read.",
            "What makes the hit rates comparable.",
        ),
        (
            "disagreed",
            "disagreeing_prompts",
            "Prompts of which the engine counted other tokens than were read.",
            "The tokenizer or the chat template is not the engine's: nothing that follows the difference can be a hit.",
        ),
    )
}
FAMILIES = (READ, APPROXIMATE, *COUNTERS.values())


def render(service: "Service") -> Iterator[str]:
    """Lines of the reader, family by family."""
    counters = service.prompts.counters
    yield READ.render((labels(source=source), count) for source, count in counters.read.items())
    yield APPROXIMATE.render((labels(reason=reason), count) for reason, count in counters.approximate.items())
    for field, family in COUNTERS.items():
        yield family.render([(NO_LABELS, getattr(counters, field))])
