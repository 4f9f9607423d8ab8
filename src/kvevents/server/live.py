"""`GET /stream`: the document of `/stats` as it changes, decisions, and what happened, as server-sent events.

| event | data |
|---|---|
| `snapshot` | `{stats, history, decisions, log}`: everything; the first message, and again after one was missed |
| `change` | `{changes: [[path, value], ...]}`: set each of these in `stats`; a path is keys and places in lists |
| `history` | `{rows}`: seconds that are over, to follow `history.fine` |
| `decisions` | `{taken, shown}`: explained decisions that are new or have ended (same `id`), of all that were taken |
| `log` | `{entries}`: to follow `log` |
| `bye` | `{}`: the router is going down |

Every message has an id. Whoever comes back with it in `Last-Event-ID` is told what was missed, or everything anew. The
stream ends after a while, so that who may read it is asked again; browsers come back by themselves.
"""

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from starlette.types import Message, Receive, Scope, Send

from kvevents.server.dashboard.settings import DashboardSettings
from kvevents.server.errors import HttpError

KEPT_BYTES = 4 * 2**20
"""Messages that are kept for those who come back."""

_encode = msgspec.json.Encoder().encode

Path = tuple[str | int, ...]


class StreamCounters(msgspec.Struct):
    """What became of the stream's readers.

    Attributes:
        readers: reading now.
        connected: since the start.
        resumed: those of them who were told only what they had missed.
        refused: turned away, since there were too many.
        overflows: times a reader was so slow that its messages were dropped and it was told everything anew.
        dropped_messages: the messages that were dropped.
        stalled: readers let go, since they took nothing any more.
    """

    readers: int = 0
    connected: int = 0
    resumed: int = 0
    refused: int = 0
    overflows: int = 0
    dropped_messages: int = 0
    stalled: int = 0


class _Reader:
    """One reader and what waits for it: messages, or (`None`) a snapshot."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[bytes | None] = deque()
        self._news = asyncio.Event()
        self.taken_at = 0.0
        self.task: asyncio.Task[None] | None = None

    def offer(self, message: bytes | None) -> int:
        """Let a message wait. How many had to be dropped for it: then a snapshot waits instead."""
        dropped = 0
        if message is not None and len(self._waiting) >= self._limit:
            dropped = len(self._waiting)
            self._waiting.clear()
            message = None
        self._waiting.append(message)
        self._news.set()
        return dropped

    @property
    def is_behind(self) -> bool:
        return bool(self._waiting)

    async def take(self, heartbeat_s: float) -> bytes | None:
        """The next message; a comment when there was none for long. A snapshot stands for all that waits with it."""
        while not self._waiting:
            self._news.clear()
            try:
                async with asyncio.timeout(heartbeat_s):
                    await self._news.wait()
            except TimeoutError:
                return b": alive\n\n"
        message = self._waiting.popleft()
        if message is None:
            self._waiting.clear()
        return message


class Live:
    """Sends what changed to all readers; built once for all of them. Lives on one event loop.

    Args:
        settings: bounds.
        snapshot: everything a new reader has to know, `stats` being the document that changes refer to.
    """

    def __init__(self, settings: DashboardSettings, snapshot: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._settings = settings
        self._snapshot = snapshot
        self._incarnation = secrets.token_hex(4)
        self._last = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._document: dict[str, Any] = {}
        self._readers: set[_Reader] = set()
        self._is_closed = False
        self.counters = StreamCounters()

    @property
    def has_readers(self) -> bool:
        """Whether anybody reads."""
        return bool(self._readers)

    def tell_document(self, document: dict[str, Any]) -> None:
        """Send how the document differs from the one before."""
        changes = [[list(path), value] for path, value in differences(self._document, document)]
        self._document = document
        if changes:
            self.tell("change", {"changes": changes})

    def tell(self, event: str, data: object) -> None:
        """Send to all."""
        self._last += 1
        message = self._message(event, data)
        self._kept.append((self._last, message))
        self._kept_bytes += len(message)
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft()[1])
        for reader in self._readers:
            dropped = reader.offer(message)
            if dropped:
                self.counters.overflows += 1
                self.counters.dropped_messages += dropped

    def let_go_of_stalled(self, now: float) -> None:
        """End readers that have taken nothing for long though there was something."""
        for reader in self._readers:
            if reader.is_behind and now - reader.taken_at > self._settings.stream_stall_s and reader.task is not None:
                reader.task.cancel()
                self.counters.stalled += 1

    def close(self) -> None:
        """Say goodbye; nobody is let in any more."""
        if not self._is_closed:
            self._is_closed = True
            self.tell("bye", {})

    async def serve(self, scope: Scope, receive: Receive, send: Send, tell_all: Callable[[], None]) -> None:
        """Serve one reader until it leaves, stalls, or the router goes down.

        Args:
            scope: of the request.
            receive: of the request.
            send: of the request.
            tell_all: sends what is new; nobody does while there are no readers.

        Raises:
            HttpError: 503, there are too many readers, or the router is going down.
        """
        if self._is_closed or len(self._readers) >= self._settings.stream_clients:
            self.counters.refused += 1
            what = "the router is going down" if self._is_closed else f"there are {len(self._readers)} readers already"
            raise HttpError(503, "stream_unavailable", f"expected room for one more reader, but {what}")
        if not self.has_readers:
            tell_all()  # nobody was told for a while
        reader = _Reader(self._settings.stream_frames)
        self._catch_up(reader, _header(scope, b"last-event-id"))
        self._readers.add(reader)
        self.counters.connected += 1
        self.counters.readers += 1
        reader.task = asyncio.create_task(self._pump(reader, send))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((reader.task, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._readers.discard(reader)
            self.counters.readers -= 1
            for task in (reader.task, gone):
                task.cancel()
            await asyncio.wait((reader.task, gone))
            with contextlib.suppress(asyncio.CancelledError, OSError):
                reader.task.result()

    def _catch_up(self, reader: _Reader, last_id: str) -> None:
        """Let what a reader has missed wait for it, if that is known and not too much; else everything."""
        incarnation, _, number = last_id.partition("-")
        if incarnation == self._incarnation and number.isdecimal():
            seen = int(number)
            missed = [message for at, message in self._kept if at > seen]
            if seen + len(missed) == self._last and len(missed) < self._settings.stream_frames:
                self.counters.resumed += 1
                for message in missed:
                    reader.offer(message)
                return
        reader.offer(None)

    async def _pump(self, reader: _Reader, send: Send) -> None:
        loop = asyncio.get_running_loop()
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(_part(b"retry: 1000\n\n"))
        until = loop.time() + self._settings.stream_longest_s
        while True:
            reader.taken_at = loop.time()
            message = await reader.take(self._settings.heartbeat_s)
            reader.taken_at = loop.time()
            await send(_part(self._everything() if message is None else message))
            if (self._is_closed or loop.time() > until) and not reader.is_behind:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return

    def _everything(self) -> bytes:
        """A snapshot as of the last message; what comes after it follows."""
        return self._message("snapshot", self._snapshot(self._document))

    def _message(self, event: str, data: object) -> bytes:
        number = f"{self._incarnation}-{self._last}".encode()
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (number, event.encode(), _encode(data))


def differences(before: Any, after: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """What to set where to make `after` of `before`. Where keys or places went away, the whole is set.

    A number that becomes an equal number of another type is no difference.
    """
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() <= after.keys():
        for key, value in after.items():
            if key not in before:
                yield (*path, key), value
            else:
                yield from differences(before[key], value, (*path, key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, (*path, place))
    else:
        yield path, after


def _part(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


def _header(scope: Scope, name: bytes) -> str:
    return next((bytes(value).decode("latin-1") for key, value in scope["headers"] if key == name), "")


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
