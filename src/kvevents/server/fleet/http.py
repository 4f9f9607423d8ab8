"""Questions to workers: short, bounded, never redirected, each with the worker's own key."""

import aiohttp

from kvevents.errors import TransportError
from kvevents.server.fleet.worker import Worker

MAX_ANSWER_BYTES = 4 << 20
"""Of what a worker says of itself; vLLM's /metrics of a large deployment has some hundred kilobytes."""

ROUTER_HEADER = "x-kvevents-router"
"""Names the router that asks, so that one that is its own worker notices."""


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
        self._session = aiohttp.ClientSession(
            # Closed each time: engines close idle connections after 5 s, about as long as it takes to the next probe.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={ROUTER_HEADER: name},
        )

    async def get(self, worker: Worker, path: str) -> bytes:
        """The body of a worker's answer.

        Raises:
            UnreachableError: no connection.
            StatusError: its status is not 200.
            TransportError: no answer in time, a broken one, or one that is too long.
        """
        headers = {} if worker.authorization is None else {"authorization": worker.authorization.decode("latin-1")}
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


async def _read(response: aiohttp.ClientResponse, path: str) -> bytes:
    parts = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise TransportError(f"{path}: expected at most {MAX_ANSWER_BYTES} bytes, got more")
        parts.append(part)
    return b"".join(parts)
