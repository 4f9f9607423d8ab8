"""Watches what the router believes of an engine against what the engine holds.

The law: a source never says `live` while its picture is wrong for longer than the detection bound. A picture is wrong
when it is of the engine's present life and differs from what the engine held after the same batch, when it lacks
batches that the engine had sent a bound ago, or when it is of a life that ended.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

DETECTION_BOUND_S = 2.0
"""What the documentation promises."""

MEASURING_S = 1.0
"""What the observer may be late itself: two busy cores carry the fleet, its faults and the observer."""

Blocks = dict[str, frozenset[int]]


@dataclass
class Held:
    """What one rank of an engine holds, or is believed to hold, after the batch `seq`."""

    seq: int | None
    blocks: Blocks

    @classmethod
    def read(cls, rank: dict[str, Any]) -> "Held":
        return cls(rank["seq"], {tier: frozenset(ids) for tier, ids in rank["tiers"].items() if ids})


@dataclass
class _Rank:
    """One rank's history in the engine's present life."""

    life: int = -1
    sent: dict[int, Blocks] = field(default_factory=dict)
    seen: list[tuple[float, int]] = field(default_factory=list)
    wrong_since: float | None = None
    reported: bool = False

    def learn(self, life: int, truth: Held, now: float) -> None:
        if life != self.life:
            self.life, self.sent, self.seen = life, {}, []
        if truth.seq is not None:
            self.sent[truth.seq] = truth.blocks
            self.seen.append((now, truth.seq))

    def fault_after_rest(self, belief: Held, now: float) -> str | None:
        """What is wrong with a belief that has other numbers, once two hops had the time to see it."""
        rests = [at for at, number in self.seen if number == self.seen[-1][1]]
        if not rests or rests[0] > now - 2 * DETECTION_BOUND_S:
            return None
        truth = self.sent[self.seen[-1][1]]
        return None if belief.blocks == truth else f"it differs from the engine: {difference(belief.blocks, truth)}"

    def fault(self, belief: Held, now: float) -> str | None:
        """What is wrong with a belief, as far as can be told."""
        newest = self.seen[-1][1] if self.seen else None
        seq = belief.seq
        if newest is None:
            return "it believes in blocks of an engine that announced none" if belief.blocks else None
        if seq is None or seq < newest:
            due = [number for at, number in self.seen if at <= now - DETECTION_BOUND_S]
            if due and (seq is None or seq < due[-1]):
                return f"it is at batch {seq}, and {due[-1]} was sent {DETECTION_BOUND_S:g} s ago"
        if seq is not None and seq > newest:
            return f"it is at batch {seq}, and the engine at {newest}: it is of a life that ended"
        if seq in self.sent and belief.blocks != self.sent[seq]:
            return f"after batch {seq} it differs from the engine: {difference(belief.blocks, self.sent[seq])}"
        return None


class Observer:
    """Asks engines and router again and again.

    Args:
        router: base URL of the router.

    Attributes:
        violations: every time the law was broken.
        looks: how many pictures that said `live` were judged.
    """

    def __init__(self, router: str) -> None:
        self.violations: list[str] = []
        self.looks = 0
        self._router = router
        self._ranks: dict[tuple[str, int], _Rank] = {}
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0))

    async def close(self) -> None:
        await self._http.close()

    async def look(self, worker: str, truth_url: str, life: int, *, relayed: bool = False) -> None:
        """Judge one worker once; nothing is judged that does not answer.

        Args:
            worker: its id in the router.
            truth_url: the engine itself, past its link.
            life: how often the engine was started.
            relayed: a relay numbers what the router gets, so that only an engine that rests can be compared.
        """
        before = await self.states(worker)
        believed = await self._holdings(f"{self._router}/holdings/{worker}")
        after = await self.states(worker)
        truth = await self._holdings(f"{truth_url}/holdings")
        now = time.monotonic()
        if truth is None:
            return
        for number, held in enumerate(truth):
            rank = self._ranks.setdefault((worker, number), _Rank())
            rank.learn(life, held, now)
            if believed is None or {before.get(number), after.get(number)} != {"live"}:
                rank.wrong_since, rank.reported = None, False
                continue
            self.looks += 1
            self._judge(f"{worker} rank {number}", rank, believed.get(number, Held(None, {})), now, relayed=relayed)

    async def states(self, worker: str) -> dict[int, str]:
        """The state of each rank's source, as the router says it; empty when it does not answer."""
        answer = await self._get(f"{self._router}/workers") or {"workers": []}
        sources = [source for known in answer["workers"] if known["id"] == worker for source in known["sources"]]
        return {source["dp_rank"] or 0: source["state"] for source in sources}

    async def disagreement(self, worker: str, truth_url: str) -> str | None:
        """Why belief and truth are not the same now; None when they are."""
        truth = await self._holdings(f"{truth_url}/holdings")
        believed = await self._holdings(f"{self._router}/holdings/{worker}")
        if truth is None or believed is None:
            return f"{worker}: {'the engine' if truth is None else 'the router'} does not answer"
        for number, held in enumerate(truth):
            belief = believed.get(number, Held(None, {}))
            if belief.blocks != held.blocks:
                return f"{worker} rank {number} at {belief.seq} of {held.seq}: {difference(belief.blocks, held.blocks)}"
        return None

    def _judge(self, name: str, rank: _Rank, belief: Held, now: float, *, relayed: bool) -> None:
        fault = rank.fault_after_rest(belief, now) if relayed else rank.fault(belief, now)
        if fault is None:
            rank.wrong_since, rank.reported = None, False
            return
        rank.wrong_since = rank.wrong_since or now
        late = "it is at batch" in fault and "was sent" in fault  # the bound is in it already
        bound = MEASURING_S + (0.0 if late else DETECTION_BOUND_S)
        if now - rank.wrong_since > bound and not rank.reported:
            rank.reported = True
            self.violations.append(f"{name} says live, for {now - rank.wrong_since:.1f} s: {fault}")

    async def _holdings(self, url: str) -> Any:
        answer = await self._get(url)
        if answer is None:
            return None
        ranks = {rank["dp_rank"]: Held.read(rank) for rank in answer["ranks"]}
        return ranks if "/holdings/" in url else [ranks[number] for number in sorted(ranks)]

    async def _get(self, url: str) -> Any:
        try:
            async with self._http.get(url) as response:
                return await response.json() if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            return None


def difference(belief: Blocks, truth: Blocks) -> str:
    """In how many blocks of each tier two pictures differ."""
    tiers = sorted(belief.keys() | truth.keys())
    parts: Sequence[str] = [
        f"{tier}: {len(belief.get(tier, frozenset()) - truth.get(tier, frozenset()))} too many, "
        f"{len(truth.get(tier, frozenset()) - belief.get(tier, frozenset()))} missing"
        for tier in tiers
    ]
    return "; ".join(parts)
