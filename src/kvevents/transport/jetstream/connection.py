"""One connection to a broker, from its making to its end; nothing here connects again."""

import asyncio
import contextlib
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from kvevents.errors import TransportError
from kvevents.transport.jetstream.settings import JetStreamSettings

_CLOSE_TIMEOUT_S = 1.0
_REFUSED = ("authorization violation", "authentication", "user authentication expired", "account authentication")


class AccessRefused(TransportError):  # noqa: N818 - named for what the broker did
    """The broker does not let us in, or not do what we ask."""


class Connection:
    """A connected client.

    Attributes:
        client: nats-py's.
        server: the address connected to.
        closed: set when the connection has ended, whoever ended it.
        why: why it ended.
        complaint: the last error that the broker reported beside its answers, such as a missing permission.
    """

    def __init__(self, server: str, settings: JetStreamSettings) -> None:
        self.client = Client()
        self.server = server
        self.closed = asyncio.Event()
        self.why = ""
        self.complaint = ""
        self._settings = settings

    @classmethod
    async def open(cls, server: str, settings: JetStreamSettings, name: str) -> Self:
        """Makes one and connects it; closes it if that fails.

        Raises:
            TransportError: see `connect`.
            ConfigError: see `connect`.
        """
        connection = cls(server, settings)
        try:
            await connection.connect(name)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def connect(self, name: str) -> None:
        """Connects, once. Whatever comes of it, `close` is to follow.

        Raises:
            AccessRefused: wrong credentials.
            TransportError: nothing answers there, or no NATS server does, or TLS fails.
            ConfigError: a file of the credentials cannot be used.
        """
        settings = self._settings
        options = settings.access.options()
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await self.client.connect(
                    self.server,
                    name=name,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    ping_interval=max(1, round(settings.heartbeat_s)),
                    max_outstanding_pings=3,
                    error_cb=self._on_error,
                    closed_cb=self._on_closed,
                    **options,
                )
        except (OSError, TimeoutError, ValueError, ImportError, nats.errors.Error) as error:
            raise _explain(error, self.complaint, self.server, settings) from None

    @property
    def jetstream(self) -> JetStreamContext:
        """nats-py's context for management calls."""
        return self.client.jetstream(timeout=self._settings.connect_timeout_s)

    async def call(self, subject: str, request: object = None) -> dict[str, Any]:
        """Asks the broker's JetStream API.

        Raises:
            TransportError: no answer, or an error; it has the broker's words.
        """
        payload = b"" if request is None else msgspec.json.encode(request)
        answer = await self.request(f"$JS.API.{subject}", payload)
        said: dict[str, Any] = msgspec.json.decode(answer.data)
        if "error" in said:
            raise BrokerError(subject, said["error"])
        return said

    async def request(self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> Msg:
        """One question, one answer.

        Raises:
            TransportError: none came.
        """
        try:
            return await self.client.request(subject, payload, self._settings.connect_timeout_s, headers=headers)
        except nats.errors.NoRespondersError:
            raise TransportError(
                f"{self.server}: nothing answers to {subject}: JetStream is off (start nats-server with -js), or"
                " the stream is missing"
            ) from None
        except (nats.errors.Error, OSError) as error:
            if self.complaint:
                raise AccessRefused(f"{self.server}: {self.complaint}") from None
            raise TransportError(f"{self.server}: no answer to {subject}: {error or type(error).__name__}") from None

    def fail(self, why: str) -> None:
        """Gives the connection up."""
        self.why = self.why or why
        self.closed.set()

    async def close(self) -> None:
        """Closes the socket; what was published and not yet written is written first."""
        with contextlib.suppress(Exception):  # it is gone already, or a TLS handshake that failed never ends
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self.client.close()
        transport = self.client._transport  # noqa: SLF001 - nats-py leaves it open where closing fails midway
        if transport is not None:
            with contextlib.suppress(Exception):
                transport.close()  # type: ignore[no-untyped-call]
        await asyncio.sleep(0)  # the socket is closed in the loop's next turn

    async def _on_error(self, error: Exception) -> None:
        self.complaint = str(error).removeprefix("nats: ") or type(error).__name__

    async def _on_closed(self) -> None:
        reason = self.client.last_error
        self.fail(f"{self.server}: the connection broke: {reason or 'closed'}")


class BrokerError(TransportError):
    """An error that JetStream's API answered with.

    Attributes:
        code: the API's number of it.
    """

    def __init__(self, subject: str, error: dict[str, Any]) -> None:
        super().__init__(f"{subject}: {error.get('description', 'error')} (code {error.get('err_code', '?')})")
        self.code: int = error.get("err_code", 0)


def _explain(error: BaseException, complaint: str, server: str, settings: JetStreamSettings) -> TransportError:
    said = str(error).removeprefix("nats: ").strip("'") or type(error).__name__
    where = f"{urlsplit(server).hostname}:{urlsplit(server).port or 4222}"
    if any(word in said.lower() for word in _REFUSED):
        return AccessRefused(f"{where} refuses {settings.access.kind}: {said}")
    if isinstance(error, ImportError):
        return TransportError(
            f"{where}: credentials by nkey or JWT need the package nkeys: pip install 'kvevents[nats]'"
        )
    if isinstance(error, nats.errors.NoServersError):
        said = complaint or "nothing answers"
    if isinstance(error, TimeoutError):
        said = complaint or f"no answer within {settings.connect_timeout_s:g} s"
    return TransportError(f"{where} cannot be reached: {said}")
