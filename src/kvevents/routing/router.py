"""The router: asks the index, scores the candidates, keeps the books on what is in flight."""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from kvevents.errors import ConfigError, KVEventsError
from kvevents.routing.decision import Decision, Score
from kvevents.routing.load import InFlight, Load, forget, mean_recent
from kvevents.routing.policies import Policy, make_policy

TRUST_WHEN_NOT_LIVE = 0.5
"""How much of a match counts while the worker's event source is not live: its blocks may be gone."""


class NoWorkerError(KVEventsError):
    """No worker is there to take a request: none registered, or none that is healthy and not excluded."""


class Match(Protocol):
    """What the router reads of `kvevents.index.WorkerMatch`."""

    @property
    def worker(self) -> str: ...
    @property
    def dp_rank(self) -> int | None: ...
    @property
    def usable(self) -> int: ...
    @property
    def state(self) -> str: ...


class PrefixMatcher(Protocol):
    """What the router needs of an index; `kvevents.index.PrefixIndex` is one."""

    @property
    def block_size(self) -> int: ...

    def match(
        self,
        tokens: Any,
        *,
        lora_name: str | None = None,
        lora_id: int | None = None,
        cache_salt: str | None = None,
        extra_keys: Any = None,
    ) -> Sequence[Match]: ...


class _Worker:
    """A registered worker: its ranks' loads, and whether it may be chosen."""

    __slots__ = ("loads", "up")

    def __init__(self, ranks: int, *, recent: float) -> None:
        self.loads = [Load(recent=recent) for _ in range(ranks)]
        self.up = True


class Router:
    """Chooses a worker for each prompt. Thread-safe.

    Each `select` opens a request that counts as load until `complete` or `fail` ends it; `prefill_done` in between
    turns its load from prefill to decode. A decision that has ended, or whose worker has left, counts no more
    whatever is called on it.

    Args:
        index: answers how much of a prompt each worker holds; may be replaced at any time.
        workers: ids of the workers, or a mapping of ids to their number of ranks.
        policy: a name in `POLICIES` or a policy.

    Raises:
        ConfigError: an unknown policy, a worker with less than one rank, or one string where workers are expected.
    """

    def __init__(
        self, index: PrefixMatcher, workers: Iterable[str] | Mapping[str, int] = (), policy: str | Policy = "kv"
    ) -> None:
        self.index = index
        self._lock = threading.Lock()
        self._workers: dict[str, _Worker] = {}
        self._open: dict[int, InFlight] = {}
        self._turn = 0
        self.policy = policy
        if isinstance(workers, str):  # it would register every letter
            raise ConfigError(f"workers: expected a list of ids, got the string {workers!r}: write [{workers!r}]")
        for worker in workers:
            self.add_worker(worker, ranks=workers[worker] if isinstance(workers, Mapping) else 1)

    @property
    def policy(self) -> Policy:
        """The policy in force. Assign a policy or a name to change it; open requests keep counting."""
        return self._policy

    @policy.setter
    def policy(self, policy: str | Policy) -> None:
        self._policy = make_policy(policy) if isinstance(policy, str) else policy

    @property
    def workers(self) -> dict[str, bool]:
        """Every registered worker, and whether it may be chosen."""
        with self._lock:
            return {name: worker.up for name, worker in self._workers.items()}

    def add_worker(self, worker: str, *, ranks: int = 1) -> None:
        """Let a worker take requests. One that is registered already keeps its load, unless its ranks change."""
        if ranks < 1:
            raise ConfigError(f"worker {worker}: expected at least one rank, got {ranks}")
        with self._lock:
            known = self._workers.get(worker)
            if known is None or len(known.loads) != ranks:
                self._workers[worker] = _Worker(ranks, recent=mean_recent(self._loads_up()))

    def remove_worker(self, worker: str) -> bool:
        """Forget a worker; its open requests count no more. False when it was not registered."""
        with self._lock:
            return self._workers.pop(worker, None) is not None

    def set_up(self, worker: str, up: bool) -> None:
        """Say whether a worker may be chosen. Unknown workers are ignored: they may just have left."""
        with self._lock:
            known = self._workers.get(worker)
            if known is None or known.up == up:
                return
            if up:  # back with the others' mean: what it missed is not owed to it
                recent = mean_recent(self._loads_up())
                for load in known.loads:
                    load.recent = recent
            known.up = up

    def loads(self) -> dict[tuple[str, int], Load]:
        """A copy of every rank's load, keyed by worker and rank."""
        with self._lock:
            return {
                (name, rank): load.copy()
                for name, worker in self._workers.items()
                for rank, load in enumerate(worker.loads)
            }

    def select(
        self,
        tokens: Any,
        *,
        lora_name: str | None = None,
        lora_id: int | None = None,
        cache_salt: str | None = None,
        extra_keys: Any = None,
        exclude: Collection[str] = (),
    ) -> Decision:
        """Choose a worker for a prompt and open a request on it.

        Args:
            tokens: the prompt's token ids; anything the index takes that has a length and slices.
            lora_name: adapter, part of the blocks' identity.
            lora_id: the adapter's number, for engines that announce no names.
            cache_salt: salt, part of the blocks' identity.
            extra_keys: further identity of blocks, one entry per block, as on vLLM's wire.
            exclude: workers that must not be chosen, such as those that refused this request.

        Raises:
            ConfigError: one string where a collection of workers is expected.
            NoWorkerError: no worker is left to choose from.
        """
        if isinstance(exclude, str):
            raise ConfigError(f"exclude: expected a collection of ids, got the string {exclude!r}")
        policy = self._policy
        prompt_tokens = len(tokens)
        matches = self._match(tokens, lora_name, lora_id, cache_salt, extra_keys)
        found = {(match.worker, match.dp_rank or 0): match for match in matches}
        with self._lock:
            candidates = self._score(policy, found, prompt_tokens, exclude)
            # Equal costs take turns; before the first turn, ranks alternate over the workers.
            candidates.sort(key=lambda pair: (pair[0].cost, pair[1].last_chosen, pair[0].dp_rank))
            scores = [score for score, _ in candidates]
            chosen, load = candidates[0]
            self._turn += 1
            load.last_chosen = self._turn
            forget(self._loads_up(), computed=chosen.prefill)
            load.recent += chosen.prefill
            self._open[self._turn] = InFlight(load, prefill=chosen.prefill, prompt_tokens=prompt_tokens)
            decision_id = self._turn
        return Decision(
            worker=chosen.worker,
            dp_rank=chosen.dp_rank,
            usable=chosen.usable,
            scores=scores,
            reason=policy.reason(chosen, scores[1:]),
            policy=policy.name,
            prompt_tokens=prompt_tokens,
            cached_tokens=self._cached(chosen.usable, prompt_tokens),
            best_cached_tokens=self._cached(max(score.usable for score in scores), prompt_tokens),
            id=decision_id,
        )

    def prefill_done(self, decision: Decision) -> None:
        """The first token came: the prompt is computed."""
        with self._lock:
            request = self._open.get(decision.id)
            if request is not None:
                request.prefill_done()

    def complete(self, decision: Decision) -> None:
        """The request ended well."""
        with self._lock:
            request = self._open.pop(decision.id, None)
            if request is not None:
                request.end()

    def fail(self, decision: Decision) -> None:
        """The request ended without its answer. What was never computed is no recent work either."""
        with self._lock:
            request = self._open.pop(decision.id, None)
            if request is not None:
                request.end()
                if not request.prefilled:
                    request.load.recent = max(0.0, request.load.recent - request.prefill)

    def _loads_up(self) -> list[Load]:
        return [load for worker in self._workers.values() if worker.up for load in worker.loads]

    def _score(
        self, policy: Policy, found: Mapping[tuple[str, int], Match], prompt_tokens: int, exclude: Collection[str]
    ) -> list[tuple[Score, Load]]:
        """Every candidate with its cost, in order of registration."""
        loads = [
            (name, rank, load)
            for name, worker in self._workers.items()
            if worker.up and name not in exclude
            for rank, load in enumerate(worker.loads)
        ]
        if not loads:
            raise NoWorkerError(self._nobody(exclude))
        least = min(load.recent for _, _, load in loads)
        candidates = []
        for name, rank, load in loads:
            match = found.get((name, rank))
            usable = match.usable if match else 0
            state = match.state if match else None
            trust = 1.0 if state == "live" else TRUST_WHEN_NOT_LIVE
            score = Score(
                worker=name,
                dp_rank=rank,
                usable=usable,
                state=state,
                prefill=prompt_tokens - int(trust * self._cached(usable, prompt_tokens)),
                queued=load.queued,
                decode=load.decode,
                requests=load.requests,
                surplus=int(load.recent - least),
            )
            score.cost = policy.cost(score)
            candidates.append((score, load))
        return candidates

    def _match(
        self, tokens: Any, lora_name: str | None, lora_id: int | None, cache_salt: str | None, extra_keys: Any
    ) -> Sequence[Match]:
        """What workers hold of the part of a prompt that can be reused.

        An engine computes the last token itself. A prompt of whole blocks can therefore not be continued from its end,
        and at the end of the block before a hybrid model may lack what it needs.
        """
        whole, rest = divmod(len(tokens), self.index.block_size)
        if whole and not rest:
            tokens = tokens[:-1]
            extra_keys = None if extra_keys is None else extra_keys[: whole - 1]
        return self.index.match(
            tokens, lora_name=lora_name, lora_id=lora_id, cache_salt=cache_salt, extra_keys=extra_keys
        )

    def _cached(self, usable: int, prompt_tokens: int) -> int:
        """Tokens an engine reports as cached: it always computes the prompt's last one itself."""
        block_size = self.index.block_size
        return max(0, min(usable, (prompt_tokens - 1) // block_size)) * block_size

    def _nobody(self, exclude: Collection[str]) -> str:
        if not self._workers:
            return "no worker is registered: add one"
        down = sum(not worker.up for worker in self._workers.values())
        return f"none of {len(self._workers)} workers can take the request: {down} down, {len(exclude)} already tried"
