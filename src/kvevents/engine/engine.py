"""The engine: its ranks, and the way in for requests."""

import asyncio
import contextlib
import itertools
import uuid
from array import array
from collections.abc import Callable
from typing import Self

from kvevents._core import __version__
from kvevents.engine.assembly import make_rank
from kvevents.engine.clock import Clock, LoopClock
from kvevents.engine.config import EngineConfig
from kvevents.engine.outputs import output_tokens
from kvevents.engine.publishing import EventSockets
from kvevents.engine.rank import Rank
from kvevents.engine.request import Request
from kvevents.engine.tokenizer import ByteTokenizer, Tokenizer
from kvevents.errors import ConfigError
from kvevents.events import StorageMedium


class Engine:
    """A simulated engine with `dp_size` ranks; made and used inside a running event loop.

    Args:
        config: its settings; host, port and sockets are the server's affair.
        sockets: where the ranks publish; None: nowhere.
        tokenizer: text to ids and back.
        clock: the ranks' time; None: the loop's clock at the config's speed.

    Raises:
        ConfigError: its storage cannot be used.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        sockets: EventSockets | None = None,
        tokenizer: Tokenizer | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self.tokenizer: Tokenizer = tokenizer or ByteTokenizer()
        self._sockets = sockets
        clock = clock or LoopClock(config.speed)
        self.ranks: list[Rank] = []
        with contextlib.ExitStack() as made:
            for number in range(config.dp_size):
                self.ranks.append(self._make_rank(number, clock))
                made.callback(self.ranks[-1].close)
            made.pop_all()
        self._tasks: list[asyncio.Task[None]] = []
        self._turns = itertools.count()

    async def __aenter__(self) -> Self:
        for number, rank in enumerate(self.ranks):
            # The cache announces at construction that it is empty; consumers of an earlier engine need to know.
            rank.announcer.publish()
            self._tasks.append(asyncio.create_task(rank.run(), name=f"rank {number}"))
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for rank in self.ranks:
            rank.close()

    @property
    def failure(self) -> BaseException | None:
        """What ended a rank that should run for ever; None while all is well."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                return error
        return None

    def submit(
        self,
        prompt: "array[int]",
        *,
        max_tokens: int,
        request_id: str | None = None,
        stream: bool = False,
        dp_rank: int | None = None,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        session_id: str | None = None,
        priority: int = 0,
        on_update: Callable[[], None] = lambda: None,
    ) -> Request:
        """Queue a request.

        Args:
            prompt: token ids (int64), at least one.
            max_tokens: outputs it will have.
            request_id: its name; None makes one up.
            stream: call `on_update` during generation too, not only at the end.
            dp_rank: the rank to run it; None takes the one with the least to do, ranks alike taking turns.
            extra_key: separates cache trees.
            cache_salt: the tenant's salt.
            session_id: attribution in events.
            priority: of its blocks, for the eviction policy `priority`.
            on_update: called from the event loop when there is something to tell.

        Raises:
            CapacityError: it is larger than a rank's KV cache.
            QueueFullError: too many requests are waiting.
            ConfigError: there is no such rank.
        """
        number = self._choose(dp_rank)
        rank = self.ranks[number]
        rank.scheduler.check_room(len(prompt), max_tokens)
        tokens = prompt + output_tokens(prompt, max_tokens, seed=self.config.seed, alphabet=self.tokenizer.alphabet)
        request = Request(
            id=request_id or uuid.uuid4().hex,
            tokens=tokens,
            prompt_length=len(prompt),
            extra_key=extra_key,
            cache_salt=cache_salt,
            session_id=session_id,
            priority=priority,
            dp_rank=number,
            stream_every=self.config.stream_interval if stream else None,
            on_update=on_update,
        )
        rank.submit(request)
        return request

    def abort(self, request: Request) -> None:
        """Give up a request; nothing happens if it is done."""
        if not request.is_done:
            self.ranks[request.dp_rank].abort(request)

    def flush(self) -> bool:
        """Empty all caches and announce it; False, and nothing done, while a request is waiting or running."""
        if not all(rank.scheduler.is_idle for rank in self.ranks):
            return False
        for rank in self.ranks:
            rank.flush()
        return True

    def close_session(self, session_id: str) -> bool:
        """A session has ended: what is cached for it goes in the usual order again; whether anything was."""
        return sum([rank.close_session(session_id) for rank in self.ranks]) > 0

    def pause(self) -> None:
        """Start no further step on any rank; what was recorded is published."""
        for rank in self.ranks:
            rank.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        for rank in self.ranks:
            rank.resume()

    def holdings(self) -> list[dict[str, object]]:
        """What each rank's cache holds, and the last batch that told of it.

        Events recorded so far are published first, so that whoever has applied the batches up to `seq` holds
        exactly these blocks.
        """
        return [self._holdings(number, rank) for number, rank in enumerate(self.ranks)]

    def describe(self) -> dict[str, object]:
        """The answer to `/server_info`."""
        config = self.config
        return {
            "version": __version__,
            "model_path": config.model_name,
            "served_model_name": config.model_name,
            "dp_size": config.dp_size,
            "cache": config.cache,
            "page_size": config.page_size,
            "max_total_num_tokens": config.max_total_tokens,
            "max_running_requests": config.max_running_requests,
            "max_queued_requests": config.max_queued_requests,
            "chunked_prefill_size": config.chunked_prefill_size,
            "radix_eviction_policy": config.eviction_policy,
            "keep_sessions": config.keep_sessions,
            "layers": config.layers,
            "sliding_window_size": config.window_size or None,
            "mamba_slots": config.states or None,
            "host_tokens": config.host_capacity or None,
            "storage_tokens": config.storage_capacity or None,
            "storage_medium": config.storage_tier.value if config.storage else None,
            "async_scheduling": config.async_scheduling,
            "stream_interval": config.stream_interval,
            "speed": config.speed,
            "timing": config.timing,
            "kv_events": self._sockets.describe(block_size=config.page_size, groups=config.groups)
            if self._sockets
            else None,
        }

    def _make_rank(self, number: int, clock: Clock) -> Rank:
        publisher = self._sockets.publishers[number] if self._sockets else None
        return make_rank(self.config, clock, publisher=publisher, dp_rank=number)

    def _choose(self, dp_rank: int | None) -> int:
        size = len(self.ranks)
        if dp_rank is not None:
            if not 0 <= dp_rank < size:
                raise ConfigError(f"data_parallel_rank: expected 0 to {size - 1}, got {dp_rank}")
            return dp_rank
        first = next(self._turns)
        return min(
            ((first + number) % size for number in range(size)),
            key=lambda number: self.ranks[number].scheduler.pending_tokens,
        )

    def _holdings(self, number: int, rank: Rank) -> dict[str, object]:
        rank.announcer.publish()
        tiers: dict[str, list[int]] = {StorageMedium.GPU.value: []}
        for block, tier in sorted(rank.cache.holdings()):
            tiers.setdefault(str(tier), []).append(block)
        return {"dp_rank": number, "seq": rank.announcer.sequence, "tiers": tiers}
