"""The workers that a router chooses from."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from kvevents.errors import ConfigError
from kvevents.routing.approx import LearnedIndex
from kvevents.routing.load import Load, mean_recent
from kvevents.routing.scoring import LIVE, Candidate

Role: TypeAlias = Literal["prefill", "decode"]
"""The part of a request that a worker does, where prompts are computed on other workers than answers."""

EXCLUDED = "excluded"
DOWN = "down"


_Groups: TypeAlias = dict["Role | None", list[Candidate]]


class _Worker:
    """A registered worker: its ranks, its role, and whether it may be chosen."""

    __slots__ = ("ranks", "role", "up")

    def __init__(self, ranks: Sequence[Candidate], role: Role | None) -> None:
        self.ranks = ranks
        self.role = role
        self.up = True


class Registry:
    """Who is there, who may be chosen, and for what. Not thread-safe.

    Args:
        learned: what was sent where; assign another one with `learn_anew`.
    """

    def __init__(self, learned: LearnedIndex) -> None:
        self.learned = learned
        self._workers: dict[str, _Worker] = {}
        self._loads_up: list[Load] | None = None
        self._everyone: tuple[_Groups, dict[str, str]] | None = None

    def learn_anew(self, learned: LearnedIndex) -> None:
        """Go on with another learned index, which knows nothing yet."""
        self.learned = learned
        for rank in self.all_ranks():
            rank.holder = learned.holder(rank.worker, rank.dp_rank)

    def add(self, worker: str, *, ranks: int, role: Role | None, events: bool) -> None:
        """Let a worker take requests. One that is there keeps its load, unless its ranks change.

        Raises:
            ConfigError: less than one rank, or an unknown role.
        """
        if ranks < 1:
            raise ConfigError(f"worker {worker}: expected at least one rank, got {ranks}")
        if role not in (None, "prefill", "decode"):
            raise ConfigError(f"worker {worker}: role: expected prefill, decode or none, got {role!r}")
        known = self._workers.get(worker)
        if known is not None and len(known.ranks) == ranks:
            known.role = role
            self._changed()
            return
        recent = mean_recent(self.loads_up())
        places = range(ranks)
        self._workers[worker] = _Worker([self._rank(worker, place, recent, events) for place in places], role)
        self._changed()

    def _rank(self, worker: str, dp_rank: int, recent: float, events: bool) -> Candidate:
        holder = self.learned.holder(worker, dp_rank)
        load, source = Load(recent=recent), LIVE if events else None
        return Candidate(worker, dp_rank, holder=holder, load=load, source=source)

    def remove(self, worker: str) -> bool:
        """Forget a worker. False when it was not there."""
        self.learned.remove(worker)
        self._changed()
        return self._workers.pop(worker, None) is not None

    def set_up(self, worker: str, up: bool) -> None:
        """Say whether a worker may be chosen; what is so already changes nothing."""
        known = self._workers.get(worker)
        if known is None or known.up == up:
            return
        recent = mean_recent(self.loads_up())
        known.up = up
        self._changed()
        self.learned.forget(worker)  # what comes back may be another engine
        for rank in known.ranks:
            rank.load.reported = None
            if up:  # back with the others' mean: what it missed is not owed to it
                rank.load.recent = recent

    def ups(self) -> dict[str, bool]:
        """Every worker, and whether it may be chosen."""
        return {name: worker.up for name, worker in self._workers.items()}

    def all_ranks(self) -> Iterable[Candidate]:
        """Every rank of every worker, in order of registration."""
        return (rank for worker in self._workers.values() for rank in worker.ranks)

    def ranks(self, worker: str, dp_rank: int | None) -> Sequence[Candidate]:
        """A rank of a worker, or all of them; none of an unknown worker."""
        known = self._workers.get(worker)
        if known is None:
            return ()
        return [rank for rank in known.ranks if dp_rank is None or rank.dp_rank == dp_rank]

    def loads_up(self) -> list[Load]:
        """The loads of everyone who may be chosen; not to be changed."""
        if self._loads_up is None:
            self._loads_up = [rank.load for worker in self._workers.values() if worker.up for rank in worker.ranks]
        return self._loads_up

    def candidates(self, exclude: Collection[str] | Mapping[str, str]) -> tuple[_Groups, dict[str, str]]:
        """Who may be chosen, by role and in order of registration; who may not, and why. Not to be changed."""
        if exclude:
            return self._find_candidates(exclude)
        if self._everyone is None:
            self._everyone = self._find_candidates(())
        return self._everyone

    def _changed(self) -> None:
        self._loads_up = self._everyone = None

    def _find_candidates(self, exclude: Collection[str] | Mapping[str, str]) -> tuple[_Groups, dict[str, str]]:
        groups: _Groups = {}
        excluded: dict[str, str] = {}
        for name, worker in self._workers.items():
            if name in exclude:
                excluded[name] = exclude[name] if isinstance(exclude, Mapping) else EXCLUDED
            elif not worker.up:
                excluded[name] = DOWN
            else:
                groups.setdefault(worker.role, []).extend(worker.ranks)
        return groups, excluded

    def nobody(self, excluded: Mapping[str, str], groups: Collection[Role | None]) -> str:
        """Why no worker can take a request."""
        if not self._workers:
            return "no worker is registered: add one"
        reasons = ", ".join(f"{worker} {why}" for worker, why in list(excluded.items())[:_NAMED])
        if len(excluded) > _NAMED:
            reasons += f" and {len(excluded) - _NAMED} more"
        if groups:
            (there,) = groups
            missing = "decode" if there == "prefill" else "prefill"
            why = f" ({reasons})" if reasons else ""
            return f"no worker with the role {missing} can take the request, nor one without a role{why}"
        return f"none of {len(self._workers)} workers can take the request: {reasons}"


_NAMED = 8
"""Workers that a message names."""
