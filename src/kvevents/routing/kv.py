"""The policy that knows the caches: prefill still to do, weighed against load and balance."""

from collections.abc import Sequence

from kvevents.errors import ConfigError
from kvevents.routing.decision import Score


class KvPolicy:
    """Cost in tokens of prefill: what is queued + this prompt's uncached tokens + decode load + balance.

    Affinity and load trade continuously: a worker that holds the prompt wins until what waits there outweighs
    what the others would have to compute again. The balance term spreads work that never queues (idle workers,
    one request at a time) and makes a worker that has long computed more than the others pay for it.

    Args:
        prefill_weight: tokens that one uncached token of this prompt counts for. Above 1, since computing again
            what another worker holds takes time from every request that comes after, not from this one only.
        decode_weight: tokens that one token of a prompt whose answer is being produced counts for.
        balance: tokens that one token of surplus (see `Score`) counts for.

    Raises:
        ConfigError: a negative weight.
    """

    name = "kv"

    def __init__(self, *, prefill_weight: float = 2.0, decode_weight: float = 0.05, balance: float = 0.1) -> None:
        weights = {"prefill_weight": prefill_weight, "decode_weight": decode_weight, "balance": balance}
        for setting, weight in weights.items():
            if not weight >= 0:
                raise ConfigError(f"{setting}: expected a number >= 0, got {weight}")
        self._prefill_weight = prefill_weight
        self._decode_weight = decode_weight
        self._balance = balance

    def cost(self, candidate: Score, /) -> float:
        return (
            candidate.queued
            + self._prefill_weight * candidate.prefill
            + self._decode_weight * candidate.decode
            + self._balance * candidate.surplus
        )

    def reason(self, chosen: Score, others: Sequence[Score]) -> str:
        work = (
            f"{chosen.worker} rank {chosen.dp_rank} holds {chosen.usable} blocks of the prompt and would compute "
            f"{chosen.prefill} tokens behind {chosen.queued}"
        )
        if not others:
            return f"{work}; it is the only candidate"
        rival = others[0]
        if rival.cost == chosen.cost:
            return f"{work}; {rival.worker} rank {rival.dp_rank} costs the same and was chosen more recently"
        return f"{work}: cost {chosen.cost:.0f}, the next ({rival.worker} rank {rival.dp_rank}) {rival.cost:.0f}"
