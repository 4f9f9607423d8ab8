"""The engine, as whoever sends it requests sees it."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from kvevents.errors import TransportError
from kvevents.transport.http_fetch import fetch

_Count = Annotated[int, msgspec.Meta(ge=0)]
_ANSWER_S = 60.0
"""A busy engine answers a short request late, and is not to blame here."""


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None


class Usage(msgspec.Struct):
    """What an engine counted.

    Attributes:
        prompt_tokens: tokens of the prompt.
        prompt_tokens_details: how many of them it found cached, if it says so.
    """

    prompt_tokens: _Count
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Tokens found cached; None where the engine does not report it."""
        return None if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


class _Answer(msgspec.Struct):
    usage: Usage


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class EngineClient:
    """Sends an engine what a router or a client would.

    Args:
        url: its base URL.
        api_key: its key.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url.rstrip("/")
        self._api_key = api_key

    def models(self) -> Sequence[str]:
        """The models that it serves.

        Raises:
            TransportError: it does not answer, or not so.
        """
        body = fetch(f"{self.url}/v1/models", token=self._api_key)
        try:
            return [model.id for model in msgspec.json.decode(body, type=_Models).data]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TransportError(f"{self.url}/v1/models: expected a list of models: {error}") from None

    def send(self, path: str, request: dict[str, Any]) -> Usage:
        """Send a request for one token and wait for its end.

        Raises:
            TransportError: it does not answer, or its answer has no usage.
        """
        body = msgspec.json.encode(request | {"max_tokens": 1, "temperature": 0, "stream": False})
        answer = fetch(f"{self.url}{path}", body=body, token=self._api_key, timeout_s=_ANSWER_S)
        try:
            return msgspec.json.decode(answer, type=_Answer).usage
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TransportError(f"{self.url}{path}: expected an answer with its usage: {error}") from None
