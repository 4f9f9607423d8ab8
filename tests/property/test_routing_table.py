"""The table of ranks against the law in plain Python: every figure of every candidate, whatever happened before."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvevents.routing import Decision, Router, RoutingSettings
from routing_index import BLOCK, ModelIndex
from routing_oracle import Oracle

WORKERS = {"a": 2, "b": 1, "c": 1}
NAMES = [(worker, dp_rank) for worker, ranks in WORKERS.items() for dp_rank in range(ranks)]

names = st.sampled_from(NAMES)
trunks = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 6 * BLOCK))
"""A trunk of three blocks, a branch of the same length, and how much of both."""
few = st.integers(0, 5)


def prompt_of(trunk: tuple[int, int, int]) -> list[int]:
    number, branch, length = trunk
    whole = [number] * (3 * BLOCK) + [10 + branch] * (3 * BLOCK)
    return whole[:length]


class TableMachine(RuleBasedStateMachine):
    """Does the same to a router and to the oracle."""

    @initialize(
        weights=st.tuples(*[st.floats(0, 4)] * 3),
        trust=st.floats(0, 1),
        request_tokens=st.integers(0, 64),
    )
    def begin(self, weights: tuple[float, float, float], trust: float, request_tokens: int) -> None:
        prefill, held, balance = weights
        self.now = 100.0
        settings = RoutingSettings(
            prefill_weight=prefill,
            held_weight=held,
            balance_weight=balance,
            trust=trust,
            request_tokens=request_tokens,
            memory_tokens=200,
            learned_ttl_s=20,
            learned_max_blocks=60,
        )
        self.index = ModelIndex()
        clock: Callable[[], float] = lambda: self.now  # noqa: E731
        self.router = Router(self.index, WORKERS, settings=settings, clock=clock)
        self.oracle = Oracle(WORKERS, settings, clock)
        self.open: list[Decision] = []

    @rule(trunk=trunks, approximate=st.booleans(), output_tokens=st.sampled_from([0, 3, 9999]), dry_run=st.booleans())
    def select(self, trunk: tuple[int, int, int], approximate: bool, output_tokens: int, dry_run: bool) -> None:
        prompt = prompt_of(trunk)
        reusable = prompt[:-1] if prompt and len(prompt) % BLOCK == 0 else prompt
        matches: list[Any] = self.index.match(reusable) if len(reusable) >= BLOCK else []
        found = {(one.worker, one.dp_rank): one for one in matches}
        expected = self.oracle.scores(prompt, found, approximate=approximate)
        options: dict[str, Any] = {"approximate": approximate, "output_tokens": output_tokens}
        decision = self.router.select(prompt, dry_run=dry_run, **options)
        assert decision.judged_by == decision.scores[0].judged_by
        assert decision.indexed == decision.scores[0].indexed
        assert [plain(score) for score in decision.scores] == [plain(score) for score in expected]
        if not dry_run:
            assert decision.id == self.oracle.place(prompt, expected[0], **options)
            self.open.append(decision)

    @rule(name=names, trunk=trunks)
    def store(self, name: tuple[str, int], trunk: tuple[int, int, int]) -> None:
        self.index.store(name[0], prompt_of(trunk), dp_rank=name[1])

    @rule(worker=st.sampled_from(list(WORKERS)), tiers=st.tuples(few, few, few, few))
    def demote(self, worker: str, tiers: tuple[int, ...]) -> None:
        self.index.tiers[worker] = dict(zip(("GPU", "CPU_PINNED", "DISK", "EXTERNAL"), tiers, strict=True))

    @rule(worker=st.sampled_from(list(WORKERS)), state=st.sampled_from(["live", "degraded", None]))
    def set_source(self, worker: str, state: str | None) -> None:
        self.router.set_source(worker, None, state)
        self.index.states[worker] = state or "live"
        for rank in self.oracle.ranks:
            if rank.worker == worker:
                rank.source = state

    @rule(worker=st.sampled_from(list(WORKERS)), trust=st.none() | st.floats(0, 1))
    def set_trust(self, worker: str, trust: float | None) -> None:
        self.router.set_trust(worker, trust)
        for rank in self.oracle.ranks:
            if rank.worker == worker:
                rank.trust = trust

    @rule(name=names, running=few, waiting=few, tokens=st.none() | st.integers(0, 99))
    def report(self, name: tuple[str, int], running: int, waiting: int, tokens: int | None) -> None:
        self.router.set_reported_load(*name, running=running, waiting=waiting, cached_tokens_used=tokens)
        self.oracle.ranks[NAMES.index(name)].report(running, waiting, tokens, self.now)

    @rule(choice=few, ending=st.sampled_from(["prefill_done", "complete", "fail"]))
    def proceed(self, choice: int, ending: str) -> None:
        if not self.open:
            return
        place = choice % len(self.open)
        decision = self.open[place]
        getattr(self.router, ending)(decision)
        if ending != "fail":
            self.oracle.computed(decision.id)
        if ending != "prefill_done":
            self.oracle.end(decision.id)
            del self.open[place]

    @rule(seconds=st.sampled_from([0.25, 1.5, 15.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "router"):
            return
        for rank in self.oracle.ranks:
            load = self.router.loads()[rank.worker, rank.dp_rank]
            assert (load.queued, load.held, load.recent) == (rank.queued, rank.held, rank.recent)
            assert (load.opened, load.prefilling) == (rank.opened, rank.prefilling)
            assert load.last_chosen == rank.last_chosen


def plain(score: Any) -> Any:
    return {name: getattr(score, name) for name in score.__struct_fields__}


TestTable = TableMachine.TestCase
