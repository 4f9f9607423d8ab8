"""A router, asked for its figures."""

import time
from typing import Any

import msgspec

from kvevents.errors import TransportError
from kvevents.top.picture import Picture, Row, state_news
from kvevents.transport.http_fetch import Address, fetch

_MOST_BYTES = 1 << 26


class _Counters(msgspec.Struct):
    gaps: int = 0
    missing: int = 0


class _Source(msgspec.Struct):
    state: str
    dp_rank: int | None = None
    reason: str = ""
    last_sequence: int | None = None
    counters: _Counters = msgspec.field(default_factory=_Counters)


class _Rank(msgspec.Struct):
    dp_rank: int


class _Worker(msgspec.Struct):
    id: str
    state: str
    state_reason: str | None = None
    up: bool = True
    draining: bool = False
    ranks: list[_Rank] = []
    sources: list[_Source] = []


class _Indexed(msgspec.Struct):
    worker: str
    dp_rank: int | None
    tiers: dict[str, int]
    events: int
    stored: int
    removed: int
    last_seq: int | None = None


class _Index(msgspec.Struct):
    sources: list[_Indexed]


class _Stats(msgspec.Struct):
    workers: list[_Worker]
    index: _Index


class RouterFeed:
    """Asks a router's `/stats` at each look.

    Args:
        url: its base URL.
        token: its admin token, if it has one.
    """

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self._url = f"{url.rstrip('/')}/stats"
        self._token = token
        self._known: dict[tuple[str, int], Row] = {}
        self.name = f"router {Address.parse(url).address}"

    def look(self) -> Picture:
        """What the router knows of its workers.

        Raises:
            TransportError: it does not answer, or not so.
        """
        body = fetch(self._url, token=self._token, max_bytes=_MOST_BYTES)
        try:
            stats = msgspec.json.decode(body, type=_Stats)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TransportError(f"{self._url}: expected a router's figures: {error}") from None
        held = {(one.worker, one.dp_rank or 0): one for one in stats.index.sources}
        rows = [row for worker in stats.workers for row in _rows(worker, held)]
        return Picture(time.monotonic(), rows, state_news(rows, self._known))

    def close(self) -> None:
        """Nothing is held open."""


def _rows(worker: _Worker, held: dict[tuple[str, int], _Indexed]) -> list[Row]:
    sources = {source.dp_rank: source for source in worker.sources}
    ranks = {rank.dp_rank for rank in worker.ranks} | {rank or 0 for rank in sources}
    return [
        _row(worker, rank, sources.get(rank, sources.get(None)), held.get((worker.id, rank))) for rank in sorted(ranks)
    ]


def _row(worker: _Worker, rank: int, source: _Source | None, figures: _Indexed | None) -> Row:
    of_worker = source is None or not worker.up or worker.draining  # which says more than its events' state
    said: dict[str, Any] = {"state": worker.state, "reason": worker.state_reason or ""}
    if source is not None:
        said |= {
            "gaps": source.counters.gaps,
            "missing": source.counters.missing,
            "last_sequence": source.last_sequence,
        }
        if not of_worker:
            said |= {"state": source.state, "reason": source.reason}
    if figures is not None:
        said |= {"tiers": figures.tiers, "events": figures.events, "blocks": figures.stored + figures.removed}
    return Row(worker=worker.id, dp_rank=rank, **said)
