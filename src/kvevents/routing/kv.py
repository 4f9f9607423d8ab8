"""The policy that knows the caches: prefill still to do, weighed against load and balance.

The law. Everything is in tokens of prefill, that is in the engine's time:

    cost = queued                              what has to be computed before this prompt's turn comes
         + prefill_weight * prefill            what this prompt has to compute itself
         + held_weight    * held               what takes room there, and slows each step
         + balance_weight * min(surplus, shared)

`surplus` is the work that the candidate did of late above the least busy one. `shared` is the part of a candidate's
recent work that was for prompts which begin with the very blocks that it holds of this one; where it holds none, all.

The last term is why hot prefixes spread though nothing waits. To move a prompt costs its prefix once; to keep it where
it is lets the owner work while another is idle. How long the prefix will stay hot nobody knows, so it is rented until
the rent paid equals the price, then bought (the ski-rental rule: never more than twice the cost of knowing). The rent
is the owner's work for that prefix, bounded by how much busier it is at all; the price is the prefix. So
- a prompt that nobody holds goes to the least busy (with `surplus` the only difference);
- a conversation stays at home: each turn pays for what it adds, so all its work is never more than its own length, and
  with `prefill_weight` > 1 not enough to buy a copy;
- a trunk with many branches gets its next copy when the branches' work on the owner's surplus has paid for the trunk,
  then shares the work among its copies, so that no surplus grows and no further copy is bought.
There is no threshold, and each term is continuous: more overlap never makes a candidate worse, more load never better,
and all lengths multiplied by a number multiply every cost by it.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from kvevents.routing.decision import Score
from kvevents.routing.settings import RoutingSettings


class KvPolicy:
    """Cost in tokens of prefill, by the law above.

    Args:
        settings: the weights.
        name: `kv` goes by events where there are some, `approx` by what was sent where.
    """

    def __init__(self, settings: RoutingSettings | None = None, *, name: Literal["kv", "approx"] = "kv") -> None:
        settings = settings or RoutingSettings()
        self.name = name
        self._prefill = settings.prefill_weight
        self._held = settings.held_weight
        self._balance = settings.balance_weight

    @property
    def weights(self) -> Mapping[str, float]:
        return {"queued": 1.0, "prefill": self._prefill, "held": self._held, "balance": self._balance}

    @property
    def law(self) -> tuple[float, float, float]:
        """What a token of `prefill`, of `held` and of `balance` costs: what `cost` comes to, for `Table.judge`."""
        return self._prefill, self._held, self._balance

    def cost(self, candidate: Score, /) -> float:
        return (
            candidate.queued
            + self._prefill * candidate.prefill
            + self._held * candidate.held
            + self._balance * candidate.balance
        )

    def reason(self, chosen: Score, others: Sequence[Score]) -> str:
        source = "" if chosen.judged_by == "events" else " (by what was sent there)"
        work = (
            f"{chosen.worker} rank {chosen.dp_rank} holds {chosen.usable + chosen.pending} blocks of the prompt{source}"
            f" and would compute {chosen.prefill:.0f} tokens behind {chosen.queued:.0f}"
        )
        if not others:
            return f"{work}; it is the only candidate"
        rival = others[0]
        if rival.cost == chosen.cost:
            return f"{work}; {rival.worker} rank {rival.dp_rank} costs the same and was chosen more recently"
        return f"{work}: cost {chosen.cost:.0f}, the next ({rival.worker} rank {rival.dp_rank}) {rival.cost:.0f}"
