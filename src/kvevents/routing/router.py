"""The router: asks the index, scores the candidates, keeps the books on what is in flight."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from kvevents._core.index import Found
from kvevents._core.learned import PromptChain
from kvevents._core.routing import Candidates, Judgement, Table
from kvevents.errors import ConfigError, KVEventsError
from kvevents.routing.approx import LearnedIndex
from kvevents.routing.choosing import Chooser
from kvevents.routing.decision import Decision, Score, SessionChoice, cached
from kvevents.routing.grounds import Grounds
from kvevents.routing.load import Load, Reported
from kvevents.routing.matching import PrefixMatcher, find
from kvevents.routing.policies import Policy, decode_policy, law_of, make_policy
from kvevents.routing.registry import Registry, Role
from kvevents.routing.settings import RoutingSettings

_LONGEST_ANSWER = 2048
"""Clients allow far longer answers than they get: more than this is not reckoned with."""


class NoWorkerError(KVEventsError):
    """No worker is there to take a request: none registered, or none that is healthy and not excluded."""


class _Request(NamedTuple):
    """What is to be placed."""

    found: Found | None
    chain: PromptChain
    prompt_tokens: int
    approximate: bool
    session: str | None
    output_tokens: int | None
    dry_run: bool


class Router:
    """Chooses a worker for each prompt. Thread-safe.

    Each `select` opens a request that counts as load until `complete` or `fail` ends it; `prefill_done` in between
    turns its load from prefill to decode. A decision that has ended, or whose worker has left, counts no more
    whatever is called on it.

    Args:
        index: answers how much of a prompt each worker holds; may be replaced at any time.
        workers: ids of the workers, or a mapping of ids to their number of ranks.
        policy: a name in `POLICIES` or a policy.
        settings: the weights; their `policy` is for those who make a router.
        clock: seconds, never falling; for runs in simulated time.

    Raises:
        ConfigError: an unknown policy, a worker with less than one rank, or one string where workers are expected.

    Attributes:
        settings: as given.
    """

    def __init__(
        self,
        index: PrefixMatcher,
        workers: Iterable[str] | Mapping[str, int] = (),
        policy: str | Policy = "kv",
        *,
        settings: RoutingSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings = settings or RoutingSettings()
        self._clock = clock
        self._lock = threading.Lock()
        self._index = index
        self._table = Table(
            trust=settings.trust,
            half_life_s=settings.reported_half_life_s,
            tiers=tuple(settings.weights.values()),
            memory_tokens=settings.memory_tokens,
            request_tokens=settings.request_tokens,
        )
        self._registry = Registry(self._table, self._learned_anew(index.block_size))
        self._chooser = Chooser(settings)
        self.policy = policy
        if isinstance(workers, str):  # it would register every letter
            raise ConfigError(f"workers: expected a list of ids, got the string {workers!r}: write [{workers!r}]")
        for worker in workers:
            self.add_worker(worker, ranks=workers[worker] if isinstance(workers, Mapping) else 1)

    @property
    def index(self) -> PrefixMatcher:
        """The index in use. Assign another one at any time; what was learned in another block size is forgotten."""
        return self._index

    @index.setter
    def index(self, index: PrefixMatcher) -> None:
        with self._lock:
            self._index = index
            if self.learned.block_size != index.block_size:
                self._registry.learn_anew(self._learned_anew(index.block_size))

    @property
    def learned(self) -> LearnedIndex:
        """What was sent where."""
        return self._registry.learned

    @property
    def policy(self) -> Policy:
        """The policy in force. Assign a policy or a name to change it; open requests keep counting."""
        return self._policy

    @policy.setter
    def policy(self, policy: str | Policy) -> None:
        if isinstance(policy, str):
            policy = make_policy(msgspec.structs.replace(self.settings, policy=policy))
        self._policy = policy
        self._law = law_of(policy)

    @property
    def workers(self) -> dict[str, bool]:
        """Every registered worker, and whether it may be chosen."""
        with self._lock:
            return self._registry.ups()

    def add_worker(self, worker: str, *, ranks: int = 1, role: Role | None = None, events: bool = True) -> None:
        """Let a worker take requests. One that is registered already keeps its load, unless its ranks change.

        Args:
            worker: its id.
            ranks: its data-parallel ranks, each a candidate.
            role: the part of a request that it does; None for all of it. Once there are workers for both parts, those
                without a role get requests only while one part has no worker that can take them.
            events: whether its events feed the index; where they do not, what was sent to it says what it holds.
        """
        with self._lock:
            self._registry.add(worker, ranks=ranks, role=role, events=events)

    def set_source(self, worker: str, dp_rank: int | None, state: str | None) -> None:
        """Say how far a worker's events can be trusted: the state of their source, None where there is none.

        Args:
            worker: its id; unknown ones are ignored, they may just have left.
            dp_rank: the rank; None for all of them.
            state: `live`, `degraded` and so on.
        """
        with self._lock:
            for slot in self._registry.slots(worker, dp_rank):
                self._table.set_source(slot, state)

    def set_trust(self, worker: str, trust: float | None) -> None:
        """Say what share of what is believed of a worker it was found to hold; counts while its source is not live.

        Args:
            worker: its id; unknown ones are ignored, they may just have left.
            trust: 0 to 1; None where it was not measured: then its matches count as the settings say.
        """
        with self._lock:
            for slot in self._registry.slots(worker, None):
                self._table.set_trust(slot, trust)

    def remove_worker(self, worker: str) -> bool:
        """Forget a worker; its open requests count no more. False when it was not registered."""
        with self._lock:
            return self._registry.remove(worker)

    def set_up(self, worker: str, up: bool) -> None:
        """Say whether a worker may be chosen. Unknown workers are ignored: they may just have left.

        To say what is so already changes nothing, however often: a probe resets no counter.
        """
        with self._lock:
            self._registry.set_up(worker, up)

    def set_reported_load(
        self,
        worker: str,
        dp_rank: int | None,
        *,
        running: int,
        waiting: int,
        cached_tokens_used: int | None = None,
    ) -> None:
        """Take note of what an engine says of itself. What of it is not ours counts as load, and fades as it ages.

        Args:
            worker: its id; unknown ones are ignored.
            dp_rank: the rank that the figures are of; None where they are of all ranks together, to be shared out.
            running: requests that it computes answers for.
            waiting: requests that wait for it.
            cached_tokens_used: tokens of KV cache in use by requests; None where it does not say.
        """
        with self._lock:
            now = self._clock()
            slots = self._registry.slots(worker, dp_rank)
            for place, slot in enumerate(slots):
                tokens = None if cached_tokens_used is None else _share(cached_tokens_used, place, len(slots))
                shares = (_share(running, place, len(slots)), _share(waiting, place, len(slots)))
                self._table.report(slot, *shares, tokens, now)

    def _learned_anew(self, block_size: int) -> LearnedIndex:
        settings = self.settings
        return LearnedIndex(
            block_size, ttl_s=settings.learned_ttl_s, max_blocks=settings.learned_max_blocks, clock=self._clock
        )

    def loads(self) -> dict[tuple[str, int], Load]:
        """Every rank's load as it is now, keyed by worker and rank."""
        with self._lock:
            return {(worker, dp_rank): self._load(slot) for worker, dp_rank, slot in self._registry.all_ranks()}

    def _load(self, slot: int) -> Load:
        found = self._table.load(slot)
        assert found is not None, "the registry has only ranks that are in the table"
        queued, decode, held, requests, recent, last_chosen, reported, opened, prefilling = found
        said = None if reported is None else Reported(*reported)
        return Load(queued, decode, held, requests, recent, last_chosen, said, dict(opened), dict(prefilling))

    def select(
        self,
        tokens: Any,
        *,
        lora_name: str | None = None,
        lora_id: int | None = None,
        cache_salt: str | None = None,
        extra_keys: Any = None,
        exclude: Collection[str] | Mapping[str, str] = (),
        session: str | None = None,
        output_tokens: int | None = None,
        approximate: bool = False,
        dry_run: bool = False,
    ) -> Decision:
        """Choose a worker for a prompt and open a request on it.

        Args:
            tokens: the prompt's token ids; anything the index takes that has a length and slices.
            lora_name: adapter, part of the blocks' identity.
            lora_id: the adapter's number, for engines that announce no names.
            cache_salt: salt, part of the blocks' identity.
            extra_keys: further identity of blocks, one entry per block, as on vLLM's wire.
            exclude: workers that must not be chosen, such as those that refused this request; a mapping says why.
            session: what ties requests together, where the settings keep sessions on their worker.
            output_tokens: the answer's length at most, where that is known.
            approximate: the ids only stand for token ids (the prompt could not be tokenised): nothing is asked of the
                index, and what was sent where is judged among such prompts alone.
            dry_run: only ask: nothing is opened, no turn is taken, nothing is learned, and the decision's id is 0.

        Returns:
            The decision; in a fleet with roles that of the worker that decodes, with `prefill` for the other.

        Raises:
            ConfigError: one string where a collection of workers is expected.
            NoWorkerError: no worker is left to choose from.
        """
        if isinstance(exclude, str):
            raise ConfigError(f"exclude: expected a collection of ids, got the string {exclude!r}")
        found = (
            None if approximate else find(self._index, tokens, lora_name, lora_id, cache_salt, extra_keys=extra_keys)
        )
        learned = self.learned
        chain = learned.chain(tokens, lora_name, lora_id, cache_salt, extra_keys, approximate=approximate)
        with self._lock:
            if learned is not self.learned:  # replaced just now, by one of another block size
                chain = self.learned.chain(tokens, lora_name, lora_id, cache_salt, extra_keys, approximate=approximate)
            request = _Request(found, chain, len(tokens), approximate, session, output_tokens, dry_run)
            groups, excluded = self._registry.candidates(exclude)
            if "prefill" in groups and "decode" in groups:
                prefill = self._choose(request, groups["prefill"], excluded, "prefill")
                return self._choose(request, groups["decode"], excluded, "decode", prefill=prefill)
            if None not in groups:
                raise NoWorkerError(self._registry.nobody(excluded, groups))
            return self._choose(request, groups[None], excluded, None)

    def prefill_done(self, decision: Decision) -> None:
        """The first token came: the prompt is computed."""
        prefill = decision.prefill
        if prefill is None:
            self._table.computed(decision.id)
        else:
            self._table.computed(prefill.id)
            self._table.end(prefill.id)

    def complete(self, decision: Decision) -> None:
        """The request ended well."""
        self.prefill_done(decision)
        self._table.end(decision.id)

    def fail(self, decision: Decision) -> None:
        """The request ended without its answer. What was never computed is no recent work either."""
        self._table.end(decision.id)
        if decision.prefill is not None:
            self._table.end(decision.prefill.id)

    def _choose(
        self,
        request: _Request,
        candidates: Candidates,
        excluded: Mapping[str, str],
        role: Role | None,
        *,
        prefill: Decision | None = None,
    ) -> Decision:
        """Judge candidates, take one, and open the request on it."""
        policy, law = self._policy, self._law
        if role == "decode":
            policy = decode_policy(policy)
            law = law_of(policy)
        learned = self._registry.learned
        name, now = policy.name, self._clock()
        judgement = self._table.judge(
            candidates,
            request.found,
            learned.core,
            request.chain,
            request.prompt_tokens,
            not request.approximate and name != "approx",
            now,
            now - self.settings.learned_ttl_s,
            law,
        )
        session = None if role == "prefill" else request.session
        kept: SessionChoice = "none"
        if law is not None and self._chooser.takes_cheapest(session):
            place = judgement.cheapest
            grounds = Grounds(judgement, place, policy)
        else:
            place, kept, grounds = self._draw(request, judgement, policy, session, now)
        worker, dp_rank, by_events, usable, indexed, most = judgement.facts(place)
        number = 0
        if not request.dry_run:
            output_tokens = min(request.output_tokens or 0, _LONGEST_ANSWER)
            number = self._table.place(judgement, place, learned.core, output_tokens, role == "decode")
        prompt_tokens, block_size = request.prompt_tokens, learned.block_size
        return Decision(
            worker,
            dp_rank,
            usable if prefill is None else prefill.usable,
            "events" if by_events else "learned",
            name,
            prompt_tokens,
            cached(usable, prompt_tokens, block_size) if prefill is None else prefill.cached_tokens,
            cached(most, prompt_tokens, block_size) if prefill is None else prefill.best_cached_tokens,
            number,
            indexed,
            grounds,
            block_size,
            request.approximate,
            excluded,
            kept,
            role,
            prefill,
        )

    def _draw(
        self,
        request: _Request,
        judgement: Judgement,
        policy: Policy,
        session: str | None,
        now: float,
    ) -> tuple[int, SessionChoice, Grounds]:
        """Choose where it takes more than the law: a policy's own costs, a session, a temperature."""
        scores = [Score(*judgement.score(place)) for place in range(len(judgement))]
        for score in scores:
            score.cost = policy.cost(score)
        # Equal costs take turns; before the first turn, ranks alternate over the workers.
        places = sorted(
            range(len(scores)),
            key=lambda place: (scores[place].cost, judgement.last_chosen(place), scores[place].dp_rank),
        )
        ranked = [scores[place] for place in places]
        choice = self._chooser.choose(
            ranked, prompt_tokens=request.prompt_tokens, session=session, now=now, dry_run=request.dry_run
        )
        ranked.insert(0, ranked.pop(choice.place))
        place = places[choice.place]
        return place, choice.session, Grounds(judgement, place, policy, scores=ranked, why=choice.why)


def _share(figure: int, place: int, places: int) -> int:
    """The part of a whole number that falls to one of several places."""
    return figure // places + (place < figure % places)
