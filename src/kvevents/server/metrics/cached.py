"""Metrics of what was found cached: is the hit rate falling, on which worker, and did the router know?"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from kvevents.routing import Decision
from kvevents.server.ledger import Outcome, PolicyCounts
from kvevents.server.metrics.family import Family, counter, labels
from kvevents.server.usage import Usage

if TYPE_CHECKING:
    from kvevents.server.service import Service

PROMPTS = counter(
    "prompts",
    "Placed requests by what their prompt was given as.",
    "`none` cannot be routed by its prefix: kvevents_unread_prompts_total counts why they matter.",
    "source",
)
JUDGED = counter(
    "judged_placements",
    "Placements by policy, and by what the workers' caches were judged by: their events, or what was sent to them.",
    "Fewer by events than usual: sources are not live, or prompts cannot be read as tokens.",
    "policy",
    "by",
)
POLICIES: Mapping[str, Family] = {
    field: counter(f"policy_{field}", meaning, advice, "policy")
    for field, meaning, advice in (
        ("requests", "Requests answered with status 200 to their end, by the policy that placed them.", "Traffic."),
        ("prompt_tokens", "Tokens of their prompts, as the router counted them.", "What the hit rates are shares of."),
        (
            "expected_cached_tokens",
            "Tokens of them that the router expected to be found cached.",
            "Beside the tokens reported: the two drift apart when news of a worker is missing.",
        ),
        (
            "missed_cached_tokens",
            "Tokens beyond those expected that another worker held.",
            (
                "The price of balance. Much of it: one worker is too busy to get what it holds; raise the weight of "
                "overlap or add workers."
            ),
        ),
        (
            "reports",
            "Answers whose usage said what was found cached.",
            "Fewer than requests: engines or clients leave usage out, and nothing is known of those.",
        ),
        ("reported_prompt_tokens", "Prompt tokens in those reports.", "What the reported hit rate is a share of."),
        (
            "reported_cached_tokens",
            "Cached tokens in those reports.",
            "The hit rate that engines really had. Falls with more distinct prompts, smaller caches, or missing news.",
        ),
    )
}


class WorkerSums(msgspec.Struct):
    """Of the answers that reported what was found cached on one worker."""

    reports: int = 0
    prompt_tokens: int = 0
    expected_cached_tokens: int = 0
    reported_cached_tokens: int = 0
    overstated_cached_tokens: int = 0
    understated_cached_tokens: int = 0
    unreported_answers: int = 0


WORKERS: Mapping[str, Family] = {
    field: counter(f"worker_{field}", meaning, advice, "worker")
    for field, meaning, advice in (
        ("reports", "Answers of the worker whose usage said what was found cached.", "What the other figures are of."),
        ("prompt_tokens", "Prompt tokens in those reports.", "What the worker's hit rate is a share of."),
        (
            "expected_cached_tokens",
            "Tokens that the router expected the worker to find cached, in answers with a report.",
            "Its share of the prompt tokens is the hit rate that routing goes by.",
        ),
        (
            "reported_cached_tokens",
            "Tokens that the worker reported as cached.",
            "Its share of the prompt tokens is the worker's true hit rate.",
        ),
        (
            "overstated_cached_tokens",
            "Tokens expected to be cached that the worker had to compute.",
            (
                "Removals were lost, a salt or an adapter is not seen, or the engine evicts before requests are run. "
                "Lasting: look at the state of its source; restart it or let its picture be built anew."
            ),
        ),
        (
            "understated_cached_tokens",
            "Tokens that the worker found cached though the router did not expect it.",
            (
                "Stores are lost or come late, tokens are counted in another way (a tokenizer or template that "
                "differs), or the engine has a tier that it does not announce."
            ),
        ),
        (
            "unreported_answers",
            "Answers with status 200 whose end told no cached tokens.",
            "Set the engine to report them: docs/deploy.md says how.",
        ),
    )
}
FAMILIES = (PROMPTS, JUDGED, *POLICIES.values(), *WORKERS.values())


class CachedTokens:
    """Listens to the ledger and keeps sums for each worker."""

    def __init__(self) -> None:
        self._workers: defaultdict[str, WorkerSums] = defaultdict(WorkerSums)

    def placed(self, decision: Decision, prompt_source: str) -> None:
        """Nothing is known yet of what will be found cached."""

    def ended(self, decision: Decision, outcome: Outcome, usage: Usage | None) -> None:
        """An attempt is over."""
        if outcome != "ok":
            return
        sums = self._workers[(decision.prefill or decision).worker]
        if usage is None:
            sums.unreported_answers += 1
            return
        expected, reported = decision.cached_tokens, usage.cached_tokens
        sums.reports += 1
        sums.prompt_tokens += usage.prompt_tokens
        sums.expected_cached_tokens += expected
        sums.reported_cached_tokens += reported
        sums.overstated_cached_tokens += max(0, expected - reported)
        sums.understated_cached_tokens += max(0, reported - expected)

    def render(self, service: "Service") -> Iterator[str]:
        """Lines of the sums, family by family; those of workers that left are forgotten."""
        for gone in self._workers.keys() - {worker.id for worker in service.fleet.workers}:
            del self._workers[gone]
        ledger = service.ledger
        yield PROMPTS.render((labels(source=source), count) for source, count in ledger.prompts.items())
        yield JUDGED.render((labels(policy=policy, by=by), count) for (policy, by), count in ledger.judged.items())
        policies = [(labels(policy=policy), counts) for policy, counts in ledger.policies.items()]
        for field, family in POLICIES.items():
            yield family.render((text, getattr(counts, field)) for text, counts in policies)
        workers = [(labels(worker=worker), sums) for worker, sums in self._workers.items()]
        for field, family in WORKERS.items():
            yield family.render((text, getattr(sums, field)) for text, sums in workers)


assert set(POLICIES) == set(PolicyCounts.__struct_fields__)
assert set(WORKERS) == set(WorkerSums.__struct_fields__)
