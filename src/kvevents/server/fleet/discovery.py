"""What an engine is asked when it answers for the first time, or again: its models, its role, its event sources."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from kvevents.errors import ConfigError, TransportError
from kvevents.server.configuration import Settings
from kvevents.server.configuration.worker import DISCOVER, NO_EVENTS, Role
from kvevents.server.fleet.http import StatusError, WorkerClient
from kvevents.server.fleet.jetstream import FleetLog
from kvevents.server.fleet.sources import Discover
from kvevents.server.fleet.worker import Worker
from kvevents.transport import Source

_log = logging.getLogger("kvevents.server")

_ROLES: Mapping[str, Role] = {"prefill": "prefill", "decode": "decode"}
MODELS_EVERY_S = 30.0
"""How old the list of a worker's models may become."""

_INFO_PATHS = ("/server_info", "/get_server_info")
"""SGLang's, and what it was called before."""


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _ServerInfo(msgspec.Struct):
    """What SGLang says of itself, as far as it matters here."""

    disaggregation_mode: str | None = None
    disaggregation_bootstrap_port: int | None = None


class Discovery:
    """Asks workers about themselves.

    Args:
        settings: of the service.
        client: asks over HTTP.
        discover: finds a worker's event sockets; blocking, called in a thread.
        log: where all events come from, if not from sockets.
    """

    def __init__(self, settings: Settings, client: WorkerClient, discover: Discover, log: FleetLog | None) -> None:
        self._settings = settings
        self._client = client
        self._discover = discover
        self._log = log

    async def describe(self, worker: Worker) -> None:
        """Ask a worker for its models and its role; what it does not say stays as it was."""
        await self._read_models(worker)
        info = await self._server_info(worker)
        worker.tells_of_itself = info is not None
        if info is not None:
            worker.role = worker.settings.role or _ROLES.get(info.disaggregation_mode or "")
            port = info.disaggregation_bootstrap_port if worker.role == "prefill" else None
            worker.bootstrap_port = worker.settings.bootstrap_port or port

    async def refresh_models(self, worker: Worker) -> None:
        """Ask again now and then: engines load and unload adapters, which are models too."""
        if time.monotonic() - worker.models_read >= MODELS_EVERY_S:
            await self._read_models(worker)

    async def sources(self, worker: Worker) -> Sequence[Source]:
        """The event sources of a worker.

        Raises:
            ConfigError: it has none, or what is said of them contradicts itself.
            TransportError: it does not say, now.
        """
        described = worker.settings
        if described.events == NO_EVENTS:
            raise ConfigError("its events are switched off by its settings: events = 'none'")
        if self._log is not None:
            sources: Sequence[Source] = self._log.sources(worker.id)
        elif described.has_sockets:
            keys = self._settings.events.consumer_keys(described.keys, described.publisher_key)
            sources = described.socket_sources(keys)
        else:
            try:
                sources = await self._found(worker)
            except TransportError as error:
                if worker.tells_of_itself or described.events != DISCOVER:
                    raise
                raise ConfigError(
                    f"{error}; an engine like vLLM needs its sockets in the settings: events = 'tcp://host:port'"
                ) from None
        if described.ranks is not None and len(sources) != described.ranks:
            raise ConfigError(f"ranks: expected {described.ranks} as its settings say, found {len(sources)}")
        return sources

    async def _read_models(self, worker: Worker) -> None:
        worker.models_read = time.monotonic()
        try:
            models = msgspec.json.decode(await self._client.get(worker, "/v1/models"), type=_Models)
            worker.serve(frozenset(model.id for model in models.data))
            worker.adapters = {model.id: model.parent for model in models.data if model.parent is not None}
        except (TransportError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("worker %s: /v1/models: %s", worker.id, error)

    async def _found(self, worker: Worker) -> Sequence[Source]:
        """The sources of an engine that tells them, or of the relay beside it."""
        described = worker.settings
        beside = described.events != DISCOVER
        options: dict[str, Any] = {} if described.residency == "counted" else {"residency": described.residency}
        if described.api_key is not None and not beside:  # it is the engine's, no one else's
            options["api_key"] = described.api_key.reveal()
        sources = await asyncio.to_thread(
            self._discover,
            described.events if beside else worker.url,
            worker_id=worker.id,
            timeout_s=self._settings.fleet.probe_timeout_s,
            keys=self._settings.events.consumer_keys(described.keys, described.publisher_key),
            **options,
        )
        wanted = described.block_size
        for source in sources:
            if wanted is not None and source.block_size not in {None, wanted}:
                raise ConfigError(f"block_size: expected {wanted} as its settings say, found {source.block_size}")
        return [replace(source, block_size=wanted or source.block_size) for source in sources]

    async def _server_info(self, worker: Worker) -> _ServerInfo | None:
        """What an engine says of itself; None if it is none that does."""
        for path in _INFO_PATHS:
            with contextlib.suppress(StatusError):
                try:
                    return msgspec.json.decode(await self._client.get(worker, path), type=_ServerInfo)
                except StatusError:
                    raise
                except (TransportError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    _log.warning("worker %s: %s: %s", worker.id, path, error)
                    return _ServerInfo()  # what it says will be read another time
        return None
