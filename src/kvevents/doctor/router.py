"""The router, as whoever runs it sees it."""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from kvevents.errors import TransportError
from kvevents.transport.http_fetch import fetch

_Form = TypeVar("_Form", bound=msgspec.Struct)


class RouterSource(msgspec.Struct):
    """A source of a worker's events, as the router follows it."""

    endpoint: str
    state: str
    reason: str
    code: str
    dp_rank: int | None = None
    replay_endpoint: str | None = None
    block_size: int | None = None
    topic: str | None = None


class RouterWorker(msgspec.Struct):
    """A worker, as the router sees it."""

    id: str
    url: str
    up: bool
    reason: str
    events: str
    sources: list[RouterSource] = []


class RouterMatch(msgspec.Struct):
    """How much of a prompt the router believes that a worker holds, in blocks."""

    worker: str
    usable: int


class RouterPrompt(msgspec.Struct):
    """How the router read a prompt; `tokens` are its own stand-ins where it is approximate."""

    tokens: int
    approximate: bool = False
    why_approximate: str | None = None


class RouterAnswer(msgspec.Struct):
    """What the router believes of a prompt."""

    block_size: int
    blocks: int
    matches: list[RouterMatch]
    prompt: RouterPrompt

    def usable(self, worker: str) -> int:
        """Blocks of the prompt that a worker is believed to hold."""
        return max((match.usable for match in self.matches if match.worker == worker), default=0)


class _Workers(msgspec.Struct):
    workers: list[RouterWorker]


class _Route(msgspec.Struct):
    worker: str
    reason: str = ""


class RouterClient:
    """Asks `kvevents serve`.

    Args:
        url: its base URL.
        token: its admin token.
    """

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url.rstrip("/")
        self._token = token

    def workers(self) -> Sequence[RouterWorker]:
        """Its workers.

        Raises:
            TransportError: it does not answer, or not so.
        """
        return self._ask("/workers", None, _Workers).workers

    def query(self, request: dict[str, Any]) -> RouterAnswer:
        """What it believes of a prompt.

        Raises:
            TransportError: as above.
        """
        return self._ask("/query", request, RouterAnswer)

    def route(self, request: dict[str, Any]) -> str:
        """The worker that it would send a prompt to.

        Raises:
            TransportError: as above.
        """
        return self._ask("/route", request, _Route).worker

    def _ask(self, path: str, request: dict[str, Any] | None, form: type[_Form]) -> _Form:
        body = None if request is None else msgspec.json.encode(request)
        answer = fetch(f"{self.url}{path}", body=body, token=self._token)
        try:
            return msgspec.json.decode(answer, type=form)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TransportError(f"{self.url}{path}: is this kvevents serve? {error}") from None
