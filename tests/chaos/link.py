"""Networks between an engine and whoever follows it: one that breaks connections, one that loses messages.

An engine listens on an address of its own and its link on `OUTSIDE`, on the same ports; what the engine says of its
sockets is changed to name the link, so that everybody reaches the engine through it.
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any, Protocol

import zmq
import zmq.asyncio

OUTSIDE = "127.0.0.1"


class Link(Protocol):
    """What a round may do to a link. Every fault ends with `heal`."""

    @property
    def faults(self) -> Sequence[str]: ...

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def hurt(self, fault: str) -> None: ...
    async def heal(self) -> None: ...


class Wire:
    """Forwards connections on one port, byte by byte.

    Args:
        inside: the engine's address, as long as `OUTSIDE`.
        port: on both sides.
        there: the engine's port, if it is another.
        apart: connections that begin with these bytes go to a port of `OUTSIDE` instead.
    """

    faults = ("cut", "partition", "slow")

    def __init__(
        self, inside: str, port: int, *, there: int | None = None, apart: tuple[bytes, int] | None = None
    ) -> None:
        assert len(inside) == len(OUTSIDE), "an address is replaced by one of the same length"
        self._inside, self._port = inside, port
        self._there, self._apart = there or port, apart
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._delay_s = 0.0
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._connect, OUTSIDE, self._port)

    async def close(self) -> None:
        """Reset every connection and refuse new ones."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        pumps = list(self._pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def hurt(self, fault: str) -> None:
        if fault == "cut":
            await self.close()
        elif fault == "partition":  # connections stay, and nothing comes through
            self._flowing.clear()
        else:
            self._delay_s = 0.05

    async def heal(self) -> None:
        self._delay_s = 0.0
        self._flowing.set()
        await self.open()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = b""
        address = (self._inside, self._there)
        try:
            if self._apart is not None:
                first = await reader.read(1 << 16)
                address = (OUTSIDE, self._apart[1]) if first.startswith(self._apart[0]) else address
            there, back = await asyncio.open_connection(*address)
        except OSError:
            writer.transport.abort()
            return
        back.write(first)
        tasks = [asyncio.create_task(self._pump(reader, back)), asyncio.create_task(self._pump(there, writer))]
        self._pumps.update(tasks)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            self._pumps.difference_update(tasks)
            writer.transport.abort()
            back.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._flowing.wait()
                writer.write(data.replace(self._inside.encode(), OUTSIDE.encode()))
                await writer.drain()


class Loss:
    """Forwards messages of a live socket and the replay socket beside it, and loses or repeats some.

    Those who follow see no connection break when the engine dies: the link stays.

    Args:
        inside: the engine's address.
        live: port of its PUB socket, on both sides.
        replay: port of its ROUTER socket; None: it has none.
        chance: decides which messages are hit.
    """

    faults = ("drop", "repeat", "hold", "mute", "partition")

    def __init__(self, inside: str, live: int, replay: int | None, chance: random.Random) -> None:
        self._inside, self._live, self._replay = inside, live, replay
        self._chance = chance
        self._fault: str | None = None
        self._held: list[list[bytes]] = []
        self._context: zmq.asyncio.Context | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        self._context = zmq.asyncio.Context()
        source, out = self._socket(zmq.SUB), self._socket(zmq.PUB)
        source.subscribe(b"")
        source.connect(f"tcp://{self._inside}:{self._live}")
        out.bind(f"tcp://{OUTSIDE}:{self._live}")
        self._tasks = [asyncio.create_task(self._carry(source, out))]
        if self._replay is not None:
            router = self._socket(zmq.ROUTER)
            router.bind(f"tcp://{OUTSIDE}:{self._replay}")
            self._tasks.append(asyncio.create_task(self._ask(router)))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    async def hurt(self, fault: str) -> None:
        self._fault = fault

    async def heal(self) -> None:
        self._fault = None

    def _socket(self, kind: int) -> Any:
        assert self._context is not None
        socket = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RECONNECT_IVL, 20)
        socket.set(zmq.RECONNECT_IVL_MAX, 200)
        return socket

    async def _carry(self, source: Any, out: Any) -> None:
        while True:
            message = await source.recv_multipart()
            if self._fault == "hold":
                self._held.append(message)
                continue
            held, self._held = self._held, []
            for late in held:
                await out.send_multipart(late)
            if self._fault == "partition" or (self._fault == "drop" and self._chance.random() < 0.5):
                continue
            await out.send_multipart(message)
            if self._fault == "repeat":
                await out.send_multipart(message)

    async def _ask(self, router: Any) -> None:
        """Requests; each client has a socket of its own to the engine, which expects no second address in front."""
        dealers: dict[bytes, Any] = {}
        while True:
            client, *request = await router.recv_multipart()
            if client not in dealers:
                dealers[client] = self._socket(zmq.DEALER)
                dealers[client].connect(f"tcp://{self._inside}:{self._replay}")
                self._tasks.append(asyncio.create_task(self._answer(router, client, dealers[client])))
            if self._fault not in {"mute", "partition"}:
                await dealers[client].send_multipart(request)

    async def _answer(self, router: Any, client: bytes, dealer: Any) -> None:
        while True:
            answer = await dealer.recv_multipart()
            if self._fault not in {"mute", "partition"}:
                await router.send_multipart([client, *answer])
