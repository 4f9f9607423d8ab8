"""What settings would run, and what is wrong with them that shows without running."""

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvevents.errors import ConfigError
from kvevents.server.configuration.reader import is_table, keys_of, table_of_list, without_credentials
from kvevents.server.configuration.secret import Secret
from kvevents.server.configuration.settings import Settings
from kvevents.server.configuration.worker import WorkerSettings


class PlannedWorker(msgspec.Struct, frozen=True):
    """A worker that would be taken in.

    Attributes:
        id: its name.
        url: its base URL.
        events: where its events would come from.
        has_api_key: whether it would be asked with a key.
        has_keys: whether its events would be read with keys.
        role: prefill or decode; None: as the engine says.
        max_in_flight: None for no limit.
        models: those configured; none: as the engine says.
    """

    id: str
    url: str
    events: str
    has_api_key: bool
    has_keys: bool
    role: str | None
    max_in_flight: int | None
    models: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """What would run; no secrets.

    Attributes:
        url: where it would listen.
        policy: how workers would be chosen.
        workers: the workers.
        worker_hosts: hosts that further workers may have.
        tokens: for each scope whether a token is set.
        tokenizers: models with where their tokenizer is.
        changed: settings that are not the defaults, by dotted key; without workers.
        notes: what is not wrong with the settings, and would be in the way now.
    """

    url: str
    policy: str
    workers: tuple[PlannedWorker, ...]
    worker_hosts: tuple[str, ...]
    tokens: dict[str, bool]
    tokenizers: dict[str, str]
    changed: dict[str, Any]
    notes: tuple[str, ...]


def make_plan(settings: Settings) -> Plan:
    """What settings would run."""
    host = f"[{settings.listen.host}]" if ":" in settings.listen.host else settings.listen.host
    return Plan(
        url=f"http://{host}:{settings.listen.port}",
        policy=settings.routing.policy,
        workers=tuple(_planned(worker, settings) for worker in settings.workers),
        worker_hosts=tuple(sorted(settings.worker_hosts)),
        tokens={
            "client": settings.security.client_token is not None,
            "admin": settings.security.admin_token is not None,
        },
        tokenizers={one.models: one.path for one in settings.prompts.tokenizer},
        changed=dict(_changed(settings, Settings(), "")),
        notes=tuple(_notes(settings)),
    )


def find_problems(settings: Settings, environment: Mapping[str, str] = os.environ) -> list[str]:
    """What is wrong that reading the settings did not show: addresses, key files, extras, access to the broker."""
    return list(_problems(settings, environment))


def _problems(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    listen = settings.listen
    try:
        settings.security.check_binding(listen)
    except ConfigError as error:
        yield f"[listen] host: {error}"
    if (reason := _why_not_here(listen.host)) is not None:
        yield f"[listen] host: expected an address of this machine, got {listen.host!r}: {reason}"
    try:
        settings.events.consumer_keys()
    except ConfigError as error:
        yield f"[events] {error}"
    for number, worker in enumerate(settings.workers, 1):
        try:
            keys = settings.events.consumer_keys(worker.keys, worker.publisher_key) if worker.keys else None
            if worker.has_sockets:
                worker.socket_sources(keys)
        except ConfigError as error:
            yield f"[[worker]] {number} ({worker.worker_id}) {error}"
    if settings.events.jetstream is not None:
        try:
            settings.events.jetstream.settings(environment).access.options()
        except ConfigError as error:
            yield f"[events.jetstream] {error}"


def _notes(settings: Settings) -> Iterator[str]:
    listen = settings.listen
    if (reason := _why_not_here(listen.host, listen.port)) is not None:
        yield f"port {listen.port} cannot be listened on now: {reason}"
    if not settings.workers:
        yield "there are no workers: POST /workers adds them"


def _why_not_here(host: str, port: int = 0) -> str | None:
    """Why nothing can listen on an address, whatever the port if it is 0; None when it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host.strip("[]"), port), family=family).close()
    except OSError as error:
        return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return None


def _planned(worker: WorkerSettings, settings: Settings) -> PlannedWorker:
    jetstream = settings.events.jetstream
    events = worker.events
    if jetstream is not None and events == "discover":
        events = "jetstream"
    return PlannedWorker(
        id=worker.worker_id,
        url=worker.base_url,
        events=events,
        has_api_key=worker.api_key is not None,
        has_keys=(worker.keys or settings.events.keys) is not None,
        role=worker.role,
        max_in_flight=worker.max_in_flight,
        models=worker.models,
    )


def _changed(values: Any, defaults: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every value that is not the default, by dotted key; secrets and workers have places of their own."""
    for key in keys_of(type(values)):
        value, default = getattr(values, key.field), getattr(defaults, key.field, None)
        name = f"{path}{key.name}"
        if value == default or key.kind is Secret or table_of_list(key.kind) is WorkerSettings:
            continue
        if is_table(key.kind) and value is not None:
            yield from _changed(value, default if default is not None else type(value)(), f"{name}.")
        else:
            yield name, _plain(value)


def _plain(value: Any) -> Any:
    """A value as JSON has it, without credentials."""
    plain = msgspec.to_builtins(value, enc_hook=lambda one: str(one) if isinstance(one, Path) else repr(one))
    if isinstance(plain, str):
        return without_credentials(plain)
    if isinstance(plain, list | tuple):
        return [_plain(one) for one in plain]
    return {name: _plain(one) for name, one in plain.items()} if isinstance(plain, dict) else plain
