"""A worker as it is described: in the file as `[[worker]]`, over HTTP as the body of `POST /workers`."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from kvevents.errors import ConfigError
from kvevents.server.configuration.secret import Secret
from kvevents.transport import ConsumerKeys, Source, rank_sources
from kvevents.transport.discovery import MAX_RANKS
from kvevents.transport.endpoints import Endpoint
from kvevents.transport.source import Residency

Role: TypeAlias = Literal["prefill", "decode"]

DISCOVER = "discover"
NO_EVENTS = "none"

MOST_RANKS = MAX_RANKS
MOST_BLOCK_TOKENS = 2**20
MOST_REQUESTS = 2**31 - 1

_ID = re.compile(r"[A-Za-z0-9.:_/\[\]-]{1,200}")  # it stands in headers, paths and metrics
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _json(**schema: Any) -> msgspec.Meta:
    """What the OpenAPI description says of a value; `__post_init__` says the same to all."""
    return msgspec.Meta(extra_json_schema=schema)


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine that takes requests, and where its cache events come from.

    Attributes:
        url: base URL of the engine, `http://host:port`.
        id: its name in headers, answers and metrics, unique; by default `host:port` of the URL.
        events: where its events come from. `discover`: the sockets that its `/server_info` names (SGLang, kvevents);
            `http://host:port/path`: those that a relay beside the engine names there; `tcp://host:port` or
            `ipc://path`: this socket of rank 0 (vLLM); `none`: it has no events.
        replay: the replay socket of rank 0, beside an `events` that is a socket.
        topic: only topics with this prefix are received; beside an `events` that is a socket.
        bind: true where the engine connects and the router has to bind; beside an `events` that is a socket.
        ranks: data-parallel ranks; by default as many as are discovered, or 1.
        block_size: tokens in a block of the engine; by default as discovered, or as its events say.
        residency: `counted`, or `set` for engines that announce blocks again (vLLM's full report mode).
        keys: a file of `kvevents keys` that ends in .key_secret, of a consumer that the engine's publisher lists; by
            default `[events] keys`.
        publisher_key: the publisher's public key; by default `publisher.key` beside `keys`.
        api_key: the engine's API key; never in a file of settings and never in a request.
        api_key_file: a file with the engine's API key.
        api_key_env: the environment variable with the engine's API key; by default KVEVENTS_WORKER_API_KEY, if set.
        max_in_flight: requests that it works on at once at most; by default no limit.
        role: `prefill` or `decode` where the two are apart; by default as the engine says.
        bootstrap_port: of a prefill worker; by default as the engine says.
        models: the models that it may be asked for; by default all that it says it serves.
        tokenizer: the folder with the `tokenizer.json` of its `models`; by default as `[prompts]` says.
        chat_template: a file with their chat template; by default the one in that folder.

    Raises:
        ConfigError: a value that cannot work, or two that contradict each other.
    """

    url: Annotated[str, _json(pattern=r"^https?://([A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?/?$")]
    id: Annotated[str, _json(pattern=r"^[A-Za-z0-9.:_/\[\]-]{1,200}$")] | None = None
    events: str = DISCOVER
    replay: str | None = None
    topic: str | None = None
    bind: bool | None = None
    ranks: Annotated[int, _json(minimum=1, maximum=MOST_RANKS)] | None = None
    block_size: Annotated[int, _json(minimum=1, maximum=MOST_BLOCK_TOKENS)] | None = None
    residency: Residency = "counted"
    keys: Path | None = None
    publisher_key: Path | None = None
    api_key: Secret | None = None
    api_key_file: Path | None = None
    api_key_env: str | None = None
    max_in_flight: Annotated[int, _json(minimum=1, maximum=MOST_REQUESTS)] | None = None
    role: Role | None = None
    bootstrap_port: Annotated[int, _json(minimum=1, maximum=65_535)] | None = None
    models: tuple[str, ...] = ()
    tokenizer: Path | None = None
    chat_template: Path | None = None

    def __post_init__(self) -> None:
        _base_url(self.url, "url")
        if not _ID.fullmatch(self.worker_id):
            raise ConfigError(f"id: expected up to 200 letters, digits and any of .:_-/[], got {self.worker_id!r}")
        for name, most in (("ranks", MOST_RANKS), ("block_size", MOST_BLOCK_TOKENS), ("max_in_flight", MOST_REQUESTS)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ConfigError(f"{name}: expected 1 to {most}, got {value}")
        if self.bootstrap_port is not None and not 1 <= self.bootstrap_port <= 65_535:
            raise ConfigError(f"bootstrap_port: expected 1 to 65535, got {self.bootstrap_port}")
        self._check_events()
        if self.tokenizer is not None and not self.models:
            raise ConfigError("tokenizer: expected models beside it, the names of the models that it is for")
        if self.chat_template is not None and self.tokenizer is None:
            raise ConfigError("chat_template: expected a tokenizer beside it")
        if self.publisher_key is not None and self.keys is None:
            raise ConfigError("publisher_key: expected keys beside it, got none")
        if self.api_key_file is not None and self.api_key_env is not None:
            raise ConfigError("api_key_file: expected it or api_key_env, got both")
        if self.api_key_env is not None and not _VARIABLE.fullmatch(self.api_key_env):
            # Not what it is: it may be the key itself.
            raise ConfigError("api_key_env: expected the name of an environment variable, got something else")

    def _check_events(self) -> None:
        scheme = self.events.partition("://")[0]
        if scheme in {"http", "https"}:
            _base_url(self.events, "events", may_have_path=True)
        elif self.events not in {DISCOVER, NO_EVENTS} and not self.has_sockets:
            raise ConfigError(
                f"events: expected {DISCOVER!r}, {NO_EVENTS!r}, http://host:port, tcp://host:port or ipc://path,"
                f" got {self.events!r}"
            )
        for name in ("replay", "topic", "bind"):
            if getattr(self, name) is not None and not self.has_sockets:
                raise ConfigError(f"{name}: expected events = 'tcp://host:port' or 'ipc://path' beside it")
        if self.has_sockets:
            try:
                self.socket_sources(None)
            except ConfigError as error:
                raise ConfigError(f"events: {error}") from None

    @property
    def has_sockets(self) -> bool:
        """Whether its event sockets are given, not discovered."""
        return self.events.startswith(("tcp://", "ipc://"))

    def socket_sources(self, keys: ConsumerKeys | None) -> list[Source]:
        """The sources of an engine whose sockets are given.

        Raises:
            ConfigError: an address that is none, or that cannot take keys.
        """
        return rank_sources(
            self.worker_id,
            self.events,
            self.ranks or 1,
            replay_endpoint=self.replay,
            topic=self.topic or "",
            bind=self.bind,
            block_size=self.block_size,
            residency=self.residency,
            keys=keys,
        )

    @property
    def hosts(self) -> list[str]:
        """The hosts that it leads to: its own, and those of its events."""
        hosts = [worker_address(self.url)[0]]
        if self.has_sockets:
            endpoints = [Endpoint.parse(one) for one in (self.events, self.replay) if one is not None]
            hosts += [endpoint.host for endpoint in endpoints if endpoint.transport == "tcp"]
        elif self.events not in {DISCOVER, NO_EVENTS}:
            hosts.append(_base_url(self.events, "events", may_have_path=True)[0])
        return hosts

    @property
    def base_url(self) -> str:
        """Its URL without a trailing slash."""
        return self.url.rstrip("/")

    @property
    def worker_id(self) -> str:
        """Its id: the one given, else `host:port`."""
        if self.id is not None:
            return self.id
        host, port = worker_address(self.url)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def worker_address(url: str) -> tuple[str, int]:
    """Host and port of a worker's base URL.

    Raises:
        ConfigError: not a plain http(s) base URL: another scheme, a user, a path or a query in it.
    """
    return _base_url(url, "worker URL")


def _base_url(url: str, what: str, *, may_have_path: bool = False) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise ConfigError(f"{what}: expected http://host:port: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{what}: expected http://host:port, got one with a user or password in it")
    is_plain = not ((parts.path.strip("/") and not may_have_path) or parts.query or parts.fragment)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not is_plain:
        raise ConfigError(f"{what}: expected http://host:port, got {url!r}")
    return parts.hostname, port
