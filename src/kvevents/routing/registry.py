"""The workers that a router chooses from."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from kvevents._core.routing import Candidates, Table
from kvevents.errors import ConfigError
from kvevents.routing.approx import LearnedIndex

Role: TypeAlias = Literal["prefill", "decode"]
"""The part of a request that a worker does, where prompts are computed on other workers than answers."""

LIVE = "live"
EXCLUDED = "excluded"
DOWN = "down"


_Groups: TypeAlias = dict["Role | None", Candidates]


class _Worker:
    """A registered worker: the slot of each of its ranks, its role, and whether it may be chosen."""

    __slots__ = ("role", "slots", "up")

    def __init__(self, slots: Sequence[int], role: Role | None) -> None:
        self.slots = slots
        self.role = role
        self.up = True


class Registry:
    """Who is there, who may be chosen, and for what. Not thread-safe.

    Args:
        table: where their ranks are.
        learned: what was sent where; assign another one with `learn_anew`.
    """

    def __init__(self, table: Table, learned: LearnedIndex) -> None:
        self._table = table
        self.learned = learned
        self._workers: dict[str, _Worker] = {}
        self._everyone: tuple[_Groups, dict[str, str]] | None = None

    def learn_anew(self, learned: LearnedIndex) -> None:
        """Go on with another learned index, which knows nothing yet."""
        self.learned = learned
        for worker, dp_rank, slot in self.all_ranks():
            self._table.set_holder(slot, learned.holder(worker, dp_rank))

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
        if known is not None and len(known.slots) == ranks:
            known.role = role
            self._everyone = None
            return
        recent = self._table.mean_recent()
        source = LIVE if events else None
        if known is not None:
            self._leave(known)
        slots = [
            self._table.add(worker, place, self.learned.holder(worker, place), source, recent) for place in range(ranks)
        ]
        self._workers[worker] = _Worker(slots, role)
        self._everyone = None

    def remove(self, worker: str) -> bool:
        """Forget a worker. False when it was not there."""
        self.learned.remove(worker)
        self._everyone = None
        known = self._workers.pop(worker, None)
        if known is not None:
            self._leave(known)
        return known is not None

    def set_up(self, worker: str, up: bool) -> None:
        """Say whether a worker may be chosen; what is so already changes nothing."""
        known = self._workers.get(worker)
        if known is None or known.up == up:
            return
        recent = self._table.mean_recent()
        known.up = up
        self._everyone = None
        self.learned.forget(worker)  # what comes back may be another engine
        for slot in known.slots:  # back with the others' mean: what it missed is not owed to it
            self._table.set_up(slot, up, recent)

    def _leave(self, worker: _Worker) -> None:
        for slot in worker.slots:
            self._table.remove(slot)

    def ups(self) -> dict[str, bool]:
        """Every worker, and whether it may be chosen."""
        return {name: worker.up for name, worker in self._workers.items()}

    def all_ranks(self) -> Iterable[tuple[str, int, int]]:
        """Every rank of every worker with its slot, in order of registration."""
        return (
            (name, dp_rank, slot) for name, worker in self._workers.items() for dp_rank, slot in enumerate(worker.slots)
        )

    def slots(self, worker: str, dp_rank: int | None) -> Sequence[int]:
        """The slot of a rank of a worker, or of all of them; none of an unknown worker."""
        known = self._workers.get(worker)
        if known is None:
            return ()
        if dp_rank is None:
            return known.slots
        return known.slots[dp_rank : dp_rank + 1] if dp_rank >= 0 else ()

    def candidates(self, exclude: Collection[str] | Mapping[str, str]) -> tuple[_Groups, dict[str, str]]:
        """Who may be chosen, by role and in order of registration; who may not, and why. Not to be changed."""
        if exclude:
            return self._find_candidates(exclude)
        if self._everyone is None:
            self._everyone = self._find_candidates(())
        return self._everyone

    def _find_candidates(self, exclude: Collection[str] | Mapping[str, str]) -> tuple[_Groups, dict[str, str]]:
        groups: dict[Role | None, list[int]] = {}
        excluded: dict[str, str] = {}
        for name, worker in self._workers.items():
            if name in exclude:
                excluded[name] = exclude[name] if isinstance(exclude, Mapping) else EXCLUDED
            elif not worker.up:
                excluded[name] = DOWN
            else:
                groups.setdefault(worker.role, []).extend(worker.slots)
        return {role: Candidates(slots) for role, slots in groups.items()}, excluded

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
