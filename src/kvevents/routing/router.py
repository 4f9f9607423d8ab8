"""The router: asks the index, scores the candidates, keeps the books on what is in flight."""

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from kvevents._core.learned import PromptChain
from kvevents.errors import ConfigError, KVEventsError
from kvevents.routing.approx import LearnedIndex
from kvevents.routing.books import Books, InFlight
from kvevents.routing.choosing import Chooser
from kvevents.routing.decision import Decision, Score, cached
from kvevents.routing.load import Load
from kvevents.routing.policies import Policy, decode_policy, make_policy
from kvevents.routing.registry import Registry, Role
from kvevents.routing.scoring import Candidate, Match, PrefixMatcher, Scorer
from kvevents.routing.settings import RoutingSettings

_LONGEST_ANSWER = 2048
"""Clients allow far longer answers than they get: more than this is not reckoned with."""


class NoWorkerError(KVEventsError):
    """No worker is there to take a request: none registered, or none that is healthy and not excluded."""


class _Request(NamedTuple):
    """What is to be placed."""

    found: Mapping[tuple[str, int], Match]
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
        self._registry = Registry(self._learned_anew(index.block_size))
        self._books = Books(memory_tokens=settings.memory_tokens, request_tokens=settings.request_tokens)
        self._scorer = Scorer(settings)
        self._chooser = Chooser(settings)
        self._turn = 0
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
            for rank in self._registry.ranks(worker, dp_rank):
                rank.source = state

    def set_trust(self, worker: str, trust: float | None) -> None:
        """Say what share of what is believed of a worker it was found to hold; counts while its source is not live.

        Args:
            worker: its id; unknown ones are ignored, they may just have left.
            trust: 0 to 1; None where it was not measured: then its matches count as the settings say.
        """
        with self._lock:
            for rank in self._registry.ranks(worker, None):
                rank.trust = trust

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
            ranks = self._registry.ranks(worker, dp_rank)
            for place, rank in enumerate(ranks):
                tokens = None if cached_tokens_used is None else _share(cached_tokens_used, place, len(ranks))
                rank.load.report(
                    running=_share(running, place, len(ranks)),
                    waiting=_share(waiting, place, len(ranks)),
                    tokens=tokens,
                    now=now,
                )

    def _learned_anew(self, block_size: int) -> LearnedIndex:
        settings = self.settings
        return LearnedIndex(
            block_size, ttl_s=settings.learned_ttl_s, max_blocks=settings.learned_max_blocks, clock=self._clock
        )

    def loads(self) -> dict[tuple[str, int], Load]:
        """A copy of every rank's load, keyed by worker and rank."""
        with self._lock:
            return {(rank.worker, rank.dp_rank): rank.load.copy() for rank in self._registry.all_ranks()}

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
        found = {}
        if not approximate:
            matches = self._match(tokens, lora_name, lora_id, cache_salt, extra_keys)
            found = {(match.worker, match.dp_rank or 0): match for match in matches}
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
        with self._lock:
            self._computed(decision)
            if decision.prefill is not None:
                self._books.end(decision.prefill.id)

    def complete(self, decision: Decision) -> None:
        """The request ended well."""
        with self._lock:
            self._computed(decision)
            self._end(decision)

    def fail(self, decision: Decision) -> None:
        """The request ended without its answer. What was never computed is no recent work either."""
        with self._lock:
            self._end(decision)

    def _computed(self, decision: Decision) -> None:
        self._books.computed((decision.prefill or decision).id, self._registry.loads_up())

    def _end(self, decision: Decision) -> None:
        for one in (decision, decision.prefill):
            if one is not None:
                self._books.end(one.id)

    def _choose(
        self,
        request: _Request,
        candidates: Sequence[Candidate],
        excluded: Mapping[str, str],
        role: Role | None,
        *,
        prefill: Decision | None = None,
    ) -> Decision:
        """Score candidates, take one, and open the request on it."""
        policy = decode_policy(self._policy) if role == "decode" else self._policy
        now = self._clock()
        scores = self._scorer.scores(
            candidates,
            request.found,
            self.learned,
            request.chain,
            prompt_tokens=request.prompt_tokens,
            by_events=policy.name != "approx" and not request.approximate,
            now=now,
            age=self._books.age,
        )
        cost = policy.cost
        for score in scores:
            score.cost = cost(score)
        # Equal costs take turns; before the first turn, ranks alternate over the workers.
        ranked = sorted(zip(scores, candidates, strict=True), key=_order)
        scores = [score for score, _ in ranked]
        choice = self._chooser.choose(
            scores,
            prompt_tokens=request.prompt_tokens,
            session=None if role == "prefill" else request.session,
            now=now,
            dry_run=request.dry_run,
        )
        chosen, candidate = ranked[choice.place]
        scores.insert(0, scores.pop(choice.place))
        reason = policy.reason(chosen, scores[1:])
        computing = chosen if prefill is None else prefill.scores[0]
        prompt_tokens, block_size = request.prompt_tokens, self.learned.block_size
        most = max(score.usable for score in (scores if prefill is None else prefill.scores))
        return Decision(
            worker=chosen.worker,
            dp_rank=chosen.dp_rank,
            usable=computing.usable,
            scores=scores,
            reason=reason if choice.why is None else f"{choice.why}; {reason}",
            policy=policy.name,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached(computing.usable, prompt_tokens, block_size),
            best_cached_tokens=cached(most, prompt_tokens, block_size),
            id=0 if request.dry_run else self._place(request, chosen, candidate, now, role),
            block_size=block_size,
            approximate=request.approximate,
            weights=policy.weights,
            excluded=excluded,
            session=choice.session,
            role=role,
            prefill=prefill,
        )

    def _place(self, request: _Request, chosen: Score, candidate: Candidate, now: float, role: Role | None) -> int:
        """Open a request on a candidate, which then will hold its prompt."""
        self._turn += 1
        load = candidate.load
        load.last_chosen = self._turn
        prefill = 0 if role == "decode" else math.ceil(chosen.prefill)
        held = self._held(request, candidate)
        opened = InFlight(self._turn, load, prefill=prefill, held=held, now=now)
        if role == "decode":
            opened.prefill_done()  # it is computed elsewhere; here it takes room until its answer ends
        else:
            work = prefill + self.settings.request_tokens
            self.learned.learn_chain(request.chain, candidate.holder, work=work, age=self._books.age)
            self._scorer.observe(prompt_tokens=request.prompt_tokens, prefill=prefill)
        self._books.open(opened)
        return self._turn

    def _held(self, request: _Request, candidate: Candidate) -> int:
        """KV cache that the request takes there: half an answer on average, and what no open request holds anyway."""
        opened = candidate.load.opened
        shared = 0
        if opened:
            oldest = next(iter(opened.values()))
            (blocks,) = self.learned.depths(request.chain, [(candidate.holder, oldest)])
            shared = blocks * self.learned.block_size
        return request.prompt_tokens - shared + min(request.output_tokens or 0, _LONGEST_ANSWER) // 2

    def _match(
        self, tokens: Any, lora_name: str | None, lora_id: int | None, cache_salt: str | None, extra_keys: Any
    ) -> Sequence[Match]:
        """What workers hold of the part of a prompt that can be reused.

        An engine computes the last token itself. A prompt of whole blocks can therefore not be continued from its end,
        and at the end of the block before a hybrid model may lack what it needs.
        """
        index = self._index
        whole, rest = divmod(len(tokens), index.block_size)
        if whole and not rest:
            tokens = tokens[:-1]
            extra_keys = None if extra_keys is None else extra_keys[: whole - 1]
        return index.match(tokens, lora_name=lora_name, lora_id=lora_id, cache_salt=cache_salt, extra_keys=extra_keys)


def _order(pair: tuple[Score, Candidate]) -> tuple[float, int, int]:
    score, candidate = pair
    return score.cost, candidate.load.last_chosen, candidate.dp_rank


def _share(figure: int, place: int, places: int) -> int:
    """The part of a whole number that falls to one of several places."""
    return figure // places + (place < figure % places)
