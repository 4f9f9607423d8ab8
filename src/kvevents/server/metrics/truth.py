"""Metrics of the truth check: do engines find cached what their events promise?"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kvevents.server.metrics.family import Family, counter, gauge, labels

if TYPE_CHECKING:
    from kvevents.server.service import Service

COUNTERS: Mapping[str, Family] = {
    field: counter(f"truth_{name}", meaning, advice, "worker")
    for field, name, meaning, advice in (
        ("answers", "answers", "Answers with status 200 to their end.", "What there was to check."),
        (
            "reports",
            "reports",
            "Of those, how many said what was found cached.",
            "None: see the flags in docs/deploy.md.",
        ),
        ("judged", "judged_answers", "Of those, how many could be compared.", "The rest was raced, or not promised."),
        (
            "raced",
            "raced_answers",
            "Not compared, since the prompt or a part of it was on its way to the worker already.",
            "Bursts of the same prompt.",
        ),
        (
            "lengths_differ",
            "lengths_that_differ",
            "Reports of a prompt length that is not the router's.",
            "Another tokenizer or chat template than the engine's, or images.",
        ),
        ("expected_tokens", "expected_tokens", "Expected to be found cached, over all compared.", "By events alone."),
        (
            "reported_tokens",
            "reported_tokens",
            "Found cached, over all compared.",
            "Far from those expected: see below.",
        ),
        ("distrusts", "distrusts", "Times the worker's events began not to be believed.", "GET /workers says why."),
    )
}
GAUGES: Mapping[str, Family] = {
    field: gauge(f"truth_{name}", meaning, advice, "worker")
    for field, name, meaning, advice in (
        (
            "error",
            "error_ratio",
            "Running mean of reported minus expected, as a share of the prompt.",
            "Below 0: it finds less than its events promise. Above: more.",
        ),
        (
            "kept",
            "kept_ratio",
            "Running mean of the part of what was expected that was found.",
            "What the worker's promises are worth; routing weighs them by it while it is not believed.",
        ),
        (
            "stale_evidence",
            "stale_evidence_answers",
            "How much speaks for an index that believes in blocks that are not there, in answers.",
            "At 5 the worker is not believed any more.",
        ),
        (
            "missing_evidence",
            "missing_evidence_answers",
            "How much speaks for events that are missing, in answers.",
            "At 5 the worker is not believed any more.",
        ),
    )
}
FAMILIES = (*COUNTERS.values(), *GAUGES.values())


def render(service: "Service") -> Iterator[str]:
    """Lines of the truth check, family by family; of workers that are there."""
    there = {worker.id for worker in service.fleet.workers}
    agreements = [
        (labels(worker=worker), agreement) for worker, agreement in service.truth.workers.items() if worker in there
    ]
    for field, family in (*COUNTERS.items(), *GAUGES.items()):
        yield family.render((text, getattr(agreement, field)) for text, agreement in agreements)
