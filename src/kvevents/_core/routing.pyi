"""`kvevents._core.routing`: see `kvevents.routing`, which decides who is a candidate, and keeps the time."""

from typing import Literal, TypeAlias, final

from kvevents._core.index import Found
from kvevents._core.learned import LearnedIndex, PromptChain

_Report: TypeAlias = tuple[int, int, int, int, int | None, float]
_Times: TypeAlias = list[tuple[int, float]]

@final
class Candidates:
    """Ranks that a prompt may go to, in order."""

    def __new__(cls, slots: list[int], /) -> Candidates: ...
    def __len__(self) -> int: ...

@final
class Judgement:
    """Every candidate's figures for one prompt; a candidate is named by its place among them."""

    def __len__(self) -> int: ...
    @property
    def cheapest(self) -> int:
        """The candidate that costs least; of equals the least recently chosen, then the first by rank."""
    def ranking(self) -> list[int]:
        """All of them in that order."""
    def facts(self, place: int) -> tuple[str, int, bool, int, int | None, int]:
        """Worker, rank, whether by events, usable blocks, indexed blocks; usable blocks of whoever has most."""
    def last_chosen(self, place: int) -> int:
        """The turn in which a candidate was last chosen."""
    def score(
        self, place: int
    ) -> tuple[
        str,
        int,
        Literal["events", "learned"],
        int,
        int | None,
        int,
        dict[str, int],
        str | None,
        float,
        float,
        float,
        int,
        float,
        float,
        tuple[int, int] | None,
        float,
    ]:
        """The fields of `kvevents.routing.Score`, in order."""

@final
class Table:
    """Every rank of every worker, each in a slot of its own, and the requests open on them."""

    def __new__(
        cls,
        *,
        trust: float,
        half_life_s: float,
        tiers: tuple[float, ...],
        memory_tokens: float,
        request_tokens: float,
    ) -> Table: ...
    @property
    def age(self) -> float:
        """Half-lives of work that have passed."""
    def add(self, worker: str, rank: int, holder: int, source: str | None, recent: float) -> int:
        """Add a rank; its slot."""
    def remove(self, slot: int) -> None:
        """Take a rank out; requests open on it count no more."""
    def set_holder(self, slot: int, holder: int) -> None:
        """Say what stands for a rank in the learned index."""
    def set_source(self, slot: int, state: str | None) -> None:
        """Say how far a rank's events can be trusted."""
    def set_trust(self, slot: int, trust: float | None) -> None:
        """Say what is believed of a rank is worth while its source is not live."""
    def set_up(self, slot: int, up: bool, recent: float) -> None:
        """Say whether a rank may be chosen; its engine's report is forgotten; one that is up begins with `recent`."""
    def report(self, slot: int, running: int, waiting: int, tokens: int | None, now: float) -> None:
        """Take note of an engine's own figures."""
    def mean_recent(self) -> float:
        """What a newcomer starts with: the mean of those that are up."""
    def load(self, slot: int) -> tuple[int, int, int, int, float, int, _Report | None, _Times, _Times] | None:
        """The figures of `kvevents.routing.Load`, in order; None where the rank is gone."""
    def judge(
        self,
        candidates: Candidates,
        found: Found | None,
        learned: LearnedIndex,
        chain: PromptChain,
        prompt_tokens: int,
        by_events: bool,
        now: float,
        oldest: float,
        law: tuple[float, float, float] | None,
    ) -> Judgement:
        """Judge candidates; with a law (what a token of prefill, held and balance costs) also what each costs."""
    def place(self, judgement: Judgement, place: int, learned: LearnedIndex, output_tokens: int, decodes: bool) -> int:
        """Open a request on a candidate; its number. `decodes`: its prompt is computed elsewhere."""
    def computed(self, request: int) -> None:
        """A prompt is computed: work to come turns into work done."""
    def end(self, request: int) -> None:
        """A request has ended, well or not."""
