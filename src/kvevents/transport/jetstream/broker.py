"""A thread that keeps a connection to a broker and says how that goes."""

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import nats.errors

from kvevents.errors import KVEventsError, TransportError
from kvevents.transport.jetstream.connection import Connection
from kvevents.transport.jetstream.settings import JetStreamSettings

_log = logging.getLogger(__name__)


_CANCEL_AGAIN_S = 0.1


class BrokerStatus(msgspec.Struct, frozen=True):
    """How the connection stands.

    Attributes:
        connected: whether there is one.
        reason: to whom, or why not.
        since: when it came to be so, unix seconds.
        sessions: connections so far.
        failures: attempts and connections that failed.
    """

    connected: bool
    reason: str
    since: float
    sessions: int
    failures: int


class Broker:
    """Runs `serve` on an event loop of its own, over one connection after the other.

    Args:
        name: of the thread, and of the client as the broker sees it.
        settings: where to connect.
        serve: called with every connection; cancelled when that ends. What it raises ends the connection. Once
            `stopping` it may return, and nothing is tried again.
        on_status: called in the thread after each change.
        has_work: whether `stop` should wait for another connection.

    Attributes:
        stopping: set by `stop`.
    """

    def __init__(
        self,
        name: str,
        settings: JetStreamSettings,
        serve: Callable[[Connection], Awaitable[None]],
        *,
        on_status: Callable[[], None] = lambda: None,
        has_work: Callable[[], bool] = lambda: False,
    ) -> None:
        self.stopping = False
        self._name = name
        self._settings = settings
        self._serve = serve
        self._on_status = on_status
        self._has_work = has_work
        self._status = BrokerStatus(
            connected=False, reason="not reached yet", since=time.time(), sessions=0, failures=0
        )
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._stop: asyncio.Event = asyncio.Event()
        self._linger_s = 0.0
        self._closing: set[asyncio.Task[None]] = set()
        self._told = ""
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run_thread, name=name, daemon=True)

    def start(self) -> None:
        """Begins to connect."""
        self._thread.start()

    @property
    def status(self) -> BrokerStatus:
        """How the connection stands."""
        return self._status

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is in the loop's thread."""
        return threading.current_thread() is self._thread

    def call_soon(self, call: Callable[[], object]) -> None:
        """Has the loop make a call; nothing happens once it has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def wait(self, met: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until `met` is true, looking after each change that `tell` or the connection makes."""
        with self._changed:
            return self._changed.wait_for(met, timeout)

    def tell(self) -> None:
        """Wakes whoever waits."""
        with self._changed:
            self._changed.notify_all()

    def run(self, what: Callable[[Connection], Coroutine[Any, Any, None]], timeout: float) -> None:
        """Has the loop do something with the connection, and waits for it.

        Raises:
            TransportError: there is none, or it was not done within `timeout` seconds.
        """
        connection = self._connection
        if connection is None or not self._thread.is_alive():
            raise TransportError(f"no connection to the broker: {self._status.reason}")
        future = asyncio.run_coroutine_threadsafe(what(connection), self._loop)
        try:
            future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise TransportError(f"not done within {timeout:g} s") from None

    def stop(self, linger_s: float = 0.0) -> None:
        """Ends the thread; `serve` gets `linger_s` to return by itself. Idempotent."""
        self._linger_s = linger_s
        self.stopping = True
        self.call_soon(self._stop.set)
        if not self.is_own_thread:
            self._thread.join()

    def _run_thread(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._loop.close()
            self._status = msgspec.structs.replace(self._status, connected=False, reason="closed")
            self.tell()

    async def _main(self) -> None:
        running = asyncio.create_task(self._run())
        await self._stop.wait()
        if self._linger_s:
            await asyncio.wait({running}, timeout=self._linger_s)
        await _end(running)
        await asyncio.gather(*self._closing, return_exceptions=True)
        await _end(*(asyncio.all_tasks() - {asyncio.current_task()}))

    async def _run(self) -> None:
        pause = self._settings.retry_s
        for attempt in itertools.count():
            if self.stopping and not self._has_work():
                return
            server = self._settings.servers[attempt % len(self._settings.servers)]
            connection = Connection(server, self._settings)
            began = time.monotonic()
            try:
                await connection.connect(self._name)
                self._note(connected=True, reason=f"connected to {server}")
                if await self._hold(connection) and self.stopping:
                    return
            except (KVEventsError, OSError) as error:
                self._fail(str(error))
            except Exception as error:  # whatever a client library may raise, it is tried again
                _log.exception("%s: internal error", self._name)
                self._fail(f"{server}: {type(error).__name__}: {error}")
            finally:
                await self._close(connection)
            if time.monotonic() - began > self._settings.retry_max_s:
                pause, self._told = self._settings.retry_s, ""
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)
                await asyncio.sleep(self._settings.retry_s)  # stopping with work to do: go on trying
            pause = min(pause * 2, self._settings.retry_max_s)

    async def _hold(self, connection: Connection) -> bool:
        """Serves a connection until it or the serving ends; whether the serving was done."""
        self._connection = connection
        serving = asyncio.ensure_future(self._serve(connection))
        closed = asyncio.create_task(connection.closed.wait())
        try:
            await asyncio.wait({serving, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                self._fail(connection.why)
                return False
            error = serving.exception()
            if error is None:
                return True
            if not isinstance(error, KVEventsError | nats.errors.Error | OSError):
                _log.error("%s: internal error", self._name, exc_info=error)
            self._fail(str(error) or type(error).__name__)
            return False
        finally:
            self._connection = None
            await _end(serving, closed)

    async def _close(self, connection: Connection) -> None:
        """Closes a connection in a task that outlives a cancellation."""
        closing = asyncio.create_task(connection.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.wait({closing})

    def _fail(self, reason: str) -> None:
        if reason != self._told:  # a connection that holds for a moment only is no reason to say it again
            self._told = reason
            _log.warning("%s: %s; trying again", self._name, reason)
        self._note(connected=False, reason=reason, failed=1)

    def _note(self, *, connected: bool, reason: str, failed: int = 0) -> None:
        before = self._status
        self._status = BrokerStatus(
            connected=connected,
            reason=reason,
            since=before.since if connected == before.connected else time.time(),
            sessions=before.sessions + connected,
            failures=before.failures + failed,
        )
        self._on_status()
        self.tell()


async def _end(*tasks: "asyncio.Future[Any]") -> None:
    """Cancels tasks until they have ended: `asyncio.wait_for` may lose a cancellation that comes with its result."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_S)
        for task in done:
            if not task.cancelled():
                task.exception()  # retrieved


def must_connect(broker: Broker, met: Callable[[], bool], timeout: float | None, what: str) -> None:
    """Waits for `met`.

    Raises:
        TransportError: it was not so within `timeout` seconds; the message has the connection's reason.
    """
    if not broker.wait(met, timeout):
        raise TransportError(f"{what} is not ready within {timeout:g} s: {broker.status.reason}")
