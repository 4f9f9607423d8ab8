"""Who may join at run time: what a request to the router may point it at."""

from pathlib import Path

import msgspec

from kvevents.errors import ConfigError
from kvevents.server.configuration import Settings
from kvevents.server.configuration.worker import WorkerSettings
from kvevents.server.errors import HttpError

_ONLY_IN_SETTINGS = ("tokenizer", "chat_template")


def check_join(worker: WorkerSettings, settings: Settings) -> None:
    """Whether a worker may be taken in that a request describes.

    Its host and those of its events must be allowed, and files and variables must be some that the settings name
    already: a request must not make the router read what else there is.

    Raises:
        HttpError: 403, it may not.
        ConfigError: it is the router itself.
    """
    hosts = settings.worker_hosts
    for host in worker.hosts:
        if host not in hosts:
            raise HttpError(
                403,
                "host_not_allowed",
                f"worker host {host!r} is not allowed: start with --allow-host {host}, or add it to [security] "
                f"worker_hosts",
            )
    if worker.events.startswith("ipc://") or (worker.replay or "").startswith("ipc://") or worker.bind:
        raise HttpError(403, "socket_not_allowed", "events: sockets of this machine can be set in the settings only")
    named = {value for known in settings.workers for value in _files_and_variables(known).values()}
    for name, value in _files_and_variables(worker).items():
        if value not in named or name in _ONLY_IN_SETTINGS:
            raise HttpError(
                403, "file_not_allowed", f"{name}: expected one that a [[worker]] of the settings names already"
            )
    settings.refuse_itself(worker)


def _files_and_variables(worker: WorkerSettings) -> dict[str, object]:
    values = msgspec.structs.asdict(worker)
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, Path) or (name == "api_key_env" and value is not None)
    }


def check_same(known: WorkerSettings, asked: WorkerSettings) -> None:
    """Whether a worker that is there already is asked for as it is; what a request does not say is left alone.

    Raises:
        ConfigError: it has other settings.
    """
    for field in msgspec.structs.fields(WorkerSettings):
        if field.name in {"id", "url", "api_key"}:
            continue
        value = getattr(asked, field.name)
        if value != field.default and value != getattr(known, field.name):
            raise ConfigError(f"{field.name}: the worker is there with another one; remove it first")
