"""The engine as a process: sockets, signals, a short drain at the end."""

import contextlib
import gc
from collections.abc import Callable

import uvloop

from kvevents.engine.app import create_app
from kvevents.engine.config import EngineConfig
from kvevents.engine.engine import Engine
from kvevents.engine.listening import HttpServer, listen, url_of
from kvevents.engine.publishing import EventSockets


def run_engine(config: EngineConfig, *, announce: Callable[[dict[str, object]], None]) -> None:
    """Serve until SIGINT or SIGTERM; blocks.

    Args:
        config: the engine's settings.
        announce: called once it listens, with its `url` and its `kv_events` as in `/server_info`.

    Raises:
        TransportError: an address that cannot be bound.
        ConfigError: an endpoint that cannot be read.
    """
    uvloop.run(_serve(config, announce))


async def _serve(config: EngineConfig, announce: Callable[[dict[str, object]], None]) -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen(config.host, config.port))
        sockets = None
        if config.kv_events is not None and config.kv_events.is_on:
            sockets = stack.enter_context(EventSockets(config.kv_events, dp_size=config.dp_size))
        async with Engine(config, sockets=sockets) as engine:
            url = url_of(listener)

            def on_started() -> None:
                # What is there now stays: a collection that looks through all of it stops the engine for 20 ms.
                gc.collect()
                gc.freeze()
                announce({"url": url, "kv_events": engine.describe()["kv_events"]})

            server = HttpServer(create_app(engine), drain_s=config.drain_s, on_started=on_started)
            await server.serve(sockets=[listener])
