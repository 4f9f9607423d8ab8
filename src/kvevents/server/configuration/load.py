"""Settings from a file, flags and the environment; flags go before the file."""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvevents.errors import ConfigError
from kvevents.server.configuration.reader import Reader
from kvevents.server.configuration.secret import Secret
from kvevents.server.configuration.settings import Settings
from kvevents.server.configuration.worker import WorkerSettings
from kvevents.server.prompts.settings import TokenizerSettings

SECRETS: Mapping[str, str] = {
    "client_token": "KVEVENTS_CLIENT_TOKEN",
    "admin_token": "KVEVENTS_ADMIN_TOKEN",
    "worker_api_key": "KVEVENTS_WORKER_API_KEY",
}
"""The secrets of `[security]` and their variables."""


class InvalidSettingsError(ConfigError):
    """Settings of which something is wrong.

    Attributes:
        problems: each thing that is wrong: file, section, key, what was expected and what came.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class Override(NamedTuple):
    """A value that goes before the file's.

    Attributes:
        flag: where it came from, for messages.
        key: its dotted key, such as `listen.port`.
        value: as TOML would give it.
    """

    flag: str
    key: str
    value: Any


def load_settings(
    path: Path | None = None,
    *,
    overrides: Iterable[Override] = (),
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """The settings that a file, flags and the environment make together.

    Args:
        path: a TOML file; None: defaults.
        overrides: values that go before those of the file.
        environment: holds the secrets.

    Raises:
        InvalidSettingsError: something is wrong; all of it is named.
    """
    table = {} if path is None else _parse(path)
    origins = {}
    for override in overrides:
        _put(table, override)
        origins[override.key] = override.flag
    reader = Reader(source="" if path is None else str(path), origins=origins)
    settings = reader.read(Settings, table)
    if settings is None:
        raise InvalidSettingsError(reader.problems)
    problems: list[str] = []
    settings = _with_secrets(settings, environment, problems)
    settings = _with_tokenizers(settings, problems)
    if problems:
        raise InvalidSettingsError(problems)
    return settings


def with_api_key(worker: WorkerSettings, environment: Mapping[str, str], *, default: Secret | None) -> WorkerSettings:
    """A worker with the API key that its file or variable holds, else the one for all.

    Raises:
        ConfigError: the file cannot be read, or the variable is not set.
    """
    if worker.api_key_file is not None:
        api_key = Secret.from_file(worker.api_key_file, name="api_key_file")
    elif worker.api_key_env is not None:
        named = Secret.from_environment(environment, worker.api_key_env)
        if named is None:
            raise ConfigError(f"api_key_env: expected {worker.api_key_env} to be set in the environment, and it is not")
        api_key = named
    elif default is not None:
        api_key = default
    else:
        return worker
    return msgspec.structs.replace(worker, api_key=api_key)


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidSettingsError([f"{path}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise InvalidSettingsError([f"{path}: expected text in UTF-8: {error}"]) from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettingsError([f"{path}: expected TOML: {error}"]) from None


def _put(table: dict[str, Any], override: Override) -> None:
    *sections, name = override.key.split(".")
    for section in sections:
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            raise InvalidSettingsError([f"{override.flag}: {section!r} is no table, so it has no key {name!r}"])
        table = inner
    table[name] = override.value


def _with_secrets(settings: Settings, environment: Mapping[str, str], problems: list[str]) -> Settings:
    """The settings with every secret that they name; what is wrong with one goes to `problems`."""
    found: dict[str, Secret | None] = {}
    for name, variable in SECRETS.items():
        path = getattr(settings.security, f"{name}_file")
        try:
            found[name] = Secret.from_environment(environment, variable)
            if found[name] is None and path is not None:
                found[name] = Secret.from_file(path, name=f"[security] {name}_file")
        except ConfigError as error:
            problems.append(str(error))
    workers = []
    for number, worker in enumerate(settings.workers, 1):
        try:
            workers.append(with_api_key(worker, environment, default=found.get("worker_api_key")))
        except ConfigError as error:
            problems.append(f"[[worker]] {number} ({worker.worker_id}) {error}")
    security = msgspec.structs.replace(settings.security, **found)
    return msgspec.structs.replace(settings, security=security, workers=tuple(workers))


def _with_tokenizers(settings: Settings, problems: list[str]) -> Settings:
    """The settings with the tokenizers of workers before those by model, in one list."""
    found = []
    for number, worker in enumerate(settings.workers, 1):
        for model in worker.models if worker.tokenizer is not None else ():
            try:
                found.append(
                    TokenizerSettings(
                        models=model,
                        path=str(worker.tokenizer),
                        chat_template=None if worker.chat_template is None else str(worker.chat_template),
                    )
                )
            except ConfigError as error:
                problems.append(f"[[worker]] {number} ({worker.worker_id}) tokenizer: {error}")
    if not found:
        return settings
    prompts = msgspec.structs.replace(settings.prompts, tokenizer=(*found, *settings.prompts.tokenizer))
    return msgspec.structs.replace(settings, prompts=prompts)
