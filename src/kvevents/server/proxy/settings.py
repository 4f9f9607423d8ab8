"""How the proxy is set up: what is passed on, how much of it, and how long anything may take."""

import msgspec

from kvevents.errors import ConfigError

PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/rerank",
    "/v1/score",
    "/v1/classify",
    "/v1/tokenize",
    "/v1/detokenize",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
)
"""What engines answer from the request alone. Not here, and not passed on unless told: what changes an engine
(`/v1/load_lora_adapter`) or asks for what only one of them has (`/v1/files`, `/v1/batches`)."""


class ProxySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and patience of the proxy. All defaults are safe.

    Attributes:
        paths: `POST` to these is passed on to a worker; anything else is answered by the router itself.
        unknown_models: whether a request for a model that no worker lists is refused (404) or passed on.
        max_connections: clients connected at the same time; further ones are told 503 and closed.
        max_head_bytes: of a request's line and headers (431), and of a reply's.
        max_headers: in one request (431).
        max_body_bytes: of one request (413).
        max_buffered_bytes: of all requests' bodies together; beyond it new ones are refused (503).
        max_waiting: requests that wait for a worker with room, together; further ones are refused (429).
        waiting_timeout_s: how long one of them waits (503).
        head_timeout_s: from the first byte of a request to the end of its headers (408).
        body_timeout_s: from there to the end of its body (408).
        keep_alive_s: how long a client's connection may be idle.
        write_timeout_s: how long a client may read nothing of its reply before it is cut off.
        connect_timeout_s: how long a connection to a worker may take before another one is tried.
        first_byte_timeout_s: how long a worker may take to begin a streamed answer (504).
        idle_timeout_s: how long it may send nothing within an answer, or before one that is not streamed (504).

    Raises:
        ConfigError: a value that cannot work.
    """

    paths: tuple[str, ...] = PATHS
    unknown_models: str = "refuse"
    max_connections: int = 10_000
    max_head_bytes: int = 64 * 2**10
    max_headers: int = 100
    max_body_bytes: int = 32 * 2**20
    max_buffered_bytes: int = 2**30
    max_waiting: int = 1000
    waiting_timeout_s: float = 30.0
    head_timeout_s: float = 10.0
    body_timeout_s: float = 120.0
    keep_alive_s: float = 75.0
    write_timeout_s: float = 300.0
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 120.0
    idle_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name == "max_waiting":
                if value < 0:
                    raise ConfigError(f"max_waiting: expected at least 0, got {value}")
            elif name.startswith("max_") or name.endswith("_s"):
                _check_positive(name, value)
        if self.unknown_models not in {"refuse", "pass"}:
            raise ConfigError(f"unknown_models: expected refuse or pass, got {self.unknown_models!r}")
        for path in self.paths:
            if not path.startswith("/v1/") or path.startswith("/v1/models"):
                raise ConfigError(f"paths: expected paths under /v1/ other than /v1/models, got {path!r}")


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{name}: expected more than 0, got {value}")
