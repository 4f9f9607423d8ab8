"""A router's index against the engines' own word."""

import asyncio
import time
from collections.abc import Mapping

import aiohttp
import msgspec

from kvevents.errors import TransportError

SETTLE_S = 15.0
"""The last events have to be in the index after this long."""

POLL_S = 0.2


class RankComparison(msgspec.Struct):
    """One rank of one worker.

    Attributes:
        worker: the worker's id.
        dp_rank: the rank.
        blocks: blocks that the engine holds, each counted once a tier.
        missing: blocks that the engine holds and the index does not know.
        extra: blocks that the index believes in and the engine does not hold.
        last_seq: the last batch that the engine published; None when it published none.
    """

    worker: str
    dp_rank: int
    blocks: int
    missing: int
    extra: int
    last_seq: int | None

    @property
    def differences(self) -> int:
        return self.missing + self.extra


class RankHoldings(msgspec.Struct):
    """Blocks of one rank by tier, and the last batch that told of them."""

    dp_rank: int = 0
    seq: int | None = None
    tiers: dict[str, set[int]] = {}


class _Holdings(msgspec.Struct):
    ranks: list[RankHoldings]


async def compare(
    router_url: str, engine_urls: Mapping[str, str], *, within_s: float = SETTLE_S
) -> list[RankComparison]:
    """Compare what each engine holds with what the router's index says it holds.

    Events may still be on their way, so differences count only if they have not gone within `within_s`.

    Args:
        router_url: base URL of `kvevents serve`.
        engine_urls: base URL of each engine by worker id.
        within_s: how long to wait for agreement.

    Raises:
        TransportError: one of them does not answer.
    """
    deadline = time.monotonic() + within_s
    async with aiohttp.ClientSession() as session:
        while True:
            found = []
            for worker, url in engine_urls.items():
                held = await _holdings(session, f"{url}/holdings")
                known = await _holdings(session, f"{router_url}/holdings/{worker}")
                ranks = sorted(held.keys() | known.keys())
                nothing = RankHoldings()
                found += [compare_rank(worker, n, held.get(n, nothing), known.get(n, nothing)) for n in ranks]
            if not any(rank.differences for rank in found) or time.monotonic() >= deadline:
                return found
            await asyncio.sleep(POLL_S)


def compare_rank(worker: str, dp_rank: int, held: RankHoldings, known: RankHoldings) -> RankComparison:
    """Compare one rank; a block counts once a tier.

    Args:
        worker: the worker's id.
        dp_rank: the rank.
        held: by the engine's own word.
        known: by the index.
    """
    blocks = {(tier, block) for tier, blocks in held.tiers.items() for block in blocks}
    believed = {(tier, block) for tier, blocks in known.tiers.items() for block in blocks}
    return RankComparison(worker, dp_rank, len(blocks), len(blocks - believed), len(believed - blocks), held.seq)


async def _holdings(session: aiohttp.ClientSession, url: str) -> dict[int, RankHoldings]:
    try:
        async with session.get(url) as response:
            body = await response.read()
        holdings = msgspec.json.decode(body, type=_Holdings) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
        raise TransportError(f"{url}: expected the holdings, got: {str(error) or type(error).__name__}") from error
    if holdings is None:
        said = body[:200].decode(errors="replace")
        raise TransportError(f"{url}: expected the holdings, got status {response.status}: {said}")
    return {rank.dp_rank: rank for rank in holdings.ranks}
