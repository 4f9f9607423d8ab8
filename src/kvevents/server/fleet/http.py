"""Questions to workers: short, bounded, never redirected, each with the worker's own key."""

import re
from collections.abc import Sequence

import aiohttp

from kvevents.errors import TransportError
from kvevents.server.errors import HttpError
from kvevents.server.fleet.worker import Worker

MAX_ANSWER_BYTES = 4 << 20
"""Of what a worker says of itself; vLLM's /metrics of a large deployment has some hundred kilobytes."""

ROUTER_HEADER = "x-kvevents-router"
"""Names the routers that a question has come through, so that one that leads back to itself notices."""

LOOP = 508
"""The status that a router answers its own question with: loop detected."""

MOST_ROUTERS = 8
"""One behind the other; more are taken for a loop that lost its names."""

_ROUTER = re.compile(r"[0-9a-f]{16}")


class UnreachableError(TransportError):
    """Nobody listens there."""


class StatusError(TransportError):
    """An answer with another status than 200.

    Attributes:
        status: the status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class WorkerClient:
    """Asks workers, over connections of its own. Made and closed on one event loop.

    Args:
        timeout_s: for a whole answer.
        name: of this router, sent along.
    """

    def __init__(self, *, timeout_s: float, name: str) -> None:
        self._timeout_s = timeout_s
        self._name = name
        self._session = aiohttp.ClientSession(
            # Closed each time: engines close idle connections after 5 s, about as long as it takes to the next probe.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def get(self, worker: Worker, path: str, *, routers: Sequence[str] = ()) -> bytes:
        """The body of a worker's answer.

        Args:
            worker: who is asked.
            path: what.
            routers: those that the question has come through before.

        Raises:
            UnreachableError: no connection.
            StatusError: its status is not 200.
            TransportError: no answer in time, a broken one, or one that is too long.
        """
        headers = {ROUTER_HEADER: ", ".join([*routers, self._name])}
        if worker.authorization is not None:
            headers["authorization"] = worker.authorization.decode("latin-1")
        try:
            async with self._session.get(worker.url + path, headers=headers, allow_redirects=False) as response:
                if response.status != 200:
                    raise StatusError(response.status, f"{path}: expected status 200, got {response.status}")
                return await _read(response, path)
        except aiohttp.ClientConnectorError as error:
            raise UnreachableError(f"no connection: {error.strerror or type(error).__name__}") from None
        except TimeoutError:
            raise TransportError(f"{path}: no answer within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, ValueError) as error:
            kind = type(error).__name__  # not its words: they may hold what was sent
            raise TransportError(f"{path}: the answer broke off or is not HTTP ({kind})") from None

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


def routers_before(asked: str | None, name: str) -> list[str]:
    """The routers that a question has come through.

    Args:
        asked: what its header says.
        name: of the router that it came to.

    Raises:
        HttpError: 508, it has been here before, so a worker of this router is itself or leads back to it.
    """
    routers = _ROUTER.findall(asked or "")
    if name in routers or len(routers) >= MOST_ROUTERS:
        raise HttpError(LOOP, "loop", "this router is its own worker, or the worker of one of its workers")
    return routers


async def _read(response: aiohttp.ClientResponse, path: str) -> bytes:
    parts = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise TransportError(f"{path}: expected at most {MAX_ANSWER_BYTES} bytes, got more")
        parts.append(part)
    return b"".join(parts)
