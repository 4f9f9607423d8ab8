"""What prompts share: which beginnings are hot, who holds them, and what a cache that forgets nothing would reach."""

import asyncio
import hashlib
import secrets
from collections import deque
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kvevents.index import Stretch
from kvevents.routing.approx import LearnedIndex
from kvevents.server.dashboard.settings import DashboardSettings
from kvevents.server.errors import HttpError
from kvevents.server.fleet import Fleet
from kvevents.server.history import History
from kvevents.server.prompts import Prompt

_HALF = (1 << 32) - 1
_ROUNDS = 4

_EVERYONE = ("", 0)
"""The one holder of the all-knowing cache."""

BOUNDS = {"depth": (1, 32, 6), "limit": (1, 1000, 200)}
"""Least, most and usual value of what may be asked for."""


class Names:
    """Gives content hashes names that can be turned back only here: a hash can be guessed from tokens, a name cannot.

    A keyed permutation of 64 bits (a Feistel network over BLAKE2); the key is drawn anew at each start.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def name(self, content: int) -> str:
        """The name of a content hash: 16 hexadecimal digits."""
        left, right = content >> 32, content & _HALF
        for number in range(_ROUNDS):
            left, right = right, left ^ self._mix(number, right)
        return f"{left << 32 | right:016x}"

    def content(self, name: str) -> int:
        """The content hash of a name.

        Raises:
            ValueError: no name.
        """
        if len(name) != 16:
            raise ValueError(f"expected 16 hexadecimal digits, got {len(name)} characters")
        number = int(name, 16)
        left, right = number >> 32, number & _HALF
        for turn in reversed(range(_ROUNDS)):
            left, right = right ^ self._mix(turn, left), left
        return left << 32 | right

    def _mix(self, number: int, half: int) -> int:
        data = bytes([number]) + half.to_bytes(4, "big")
        return int.from_bytes(hashlib.blake2b(data, key=self._key, digest_size=4).digest(), "big")


class Prefixes:
    """Learns from the prompts that were answered, and answers `GET /prefixes`.

    Args:
        settings: how much is remembered.
        fleet: whose index is looked at.
        history: told what the all-knowing cache would have had.
    """

    def __init__(self, settings: DashboardSettings, fleet: Fleet, history: History) -> None:
        self._settings = settings
        self._fleet = fleet
        self._history = history
        self._names = Names()
        self._trails: deque[bytes] = deque(maxlen=settings.trails)
        self._known = self._new_cache()
        self._exploring = asyncio.Lock()

    def answered(self, prompt: Prompt) -> None:
        """A prompt was answered: from now on everybody could know it."""
        block_size = self._fleet.index.block_size
        if len(prompt.tokens) < block_size:
            return  # no whole block, or nothing is known of it
        if self._known.block_size != block_size:
            self._known = self._new_cache()
        blocks = self._known.meet(
            *_EVERYONE,
            prompt.tokens,
            lora_name=prompt.lora_name,
            cache_salt=prompt.cache_salt,
            extra_keys=prompt.extra_keys,
            approximate=prompt.approximate,
        )
        reusable = min(blocks, (len(prompt.tokens) - 1) // block_size)
        self._history.add("all_knowing_cached_tokens", reusable * block_size)
        if not prompt.approximate:
            trail = self._fleet.index.trail(
                prompt.tokens,
                lora_name=prompt.lora_name,
                cache_salt=prompt.cache_salt,
                extra_keys=prompt.extra_keys,
            )
            if trail:
                self._trails.append(trail)

    def figures(self) -> dict[str, int]:
        """How much is remembered."""
        return {"known_blocks": len(self._known), "forgotten_blocks": self._known.evicted, "trails": len(self._trails)}

    async def prefixes(self, request: Request) -> Response:
        """`GET /prefixes?at=ID&depth=N&limit=M`: the tree of prompts from `at` down, hottest and largest first.

        Raises:
            HttpError: 400, a parameter out of its range; 404, there is nothing (any more) at `at`.
        """
        depth, limit = (_number(request, name) for name in BOUNDS)
        at = request.query_params.get("at") or None
        content = None if at is None else self._content(at)
        async with self._exploring:  # each looks at all blocks: one at a time is enough
            trails = list(self._trails)
            view = await asyncio.to_thread(self._fleet.index.explore, content, depth=depth, limit=limit, trails=trails)
        if view is None:
            raise HttpError(404, "no_such_prefix", "nobody holds this prefix any more: look from above")
        document = {
            "at": at,
            "path": [self._names.name(one) for one in view.path],
            "stretches": [self._shown(one) for one in view.stretches],
            "total_stretches": view.total,
            "total_blocks": view.blocks,
            "requests": len(trails),
            "requests_followed": view.followed,
        }
        return Response(msgspec.json.encode(document), media_type="application/json")

    def _content(self, name: str) -> int:
        try:
            return self._names.content(name)
        except ValueError:
            raise HttpError(400, "bad_request", f"at: expected an id of an answer before, got {name[:40]!r}") from None

    def _shown(self, stretch: Stretch) -> dict[str, Any]:
        shown: dict[str, Any] = msgspec.structs.asdict(stretch)
        shown["id"] = self._names.name(shown.pop("content"))
        return shown

    def _new_cache(self) -> LearnedIndex:
        return LearnedIndex(self._fleet.index.block_size, max_blocks=self._settings.known_blocks)


def _number(request: Request, name: str) -> int:
    least, most, usual = BOUNDS[name]
    text = request.query_params.get(name, str(usual))
    if not (text.isdecimal() and text.isascii() and len(text) < 9 and least <= int(text) <= most):
        raise HttpError(400, "bad_request", f"{name}: expected a number from {least} to {most}, got {text[:40]!r}")
    return int(text)
