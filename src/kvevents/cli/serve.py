"""`kvevents serve`: the router."""

import logging
import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from kvevents.cli.key_files import consumer_keys
from kvevents.cli.options import Count, Port, Rate
from kvevents.cli.output import Json, print_json
from kvevents.server.run import run_router
from kvevents.server.settings import Settings, token_from

_DEFAULTS = Settings()


def serve(
    *,
    worker: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    policy: str = _DEFAULTS.policy,
    host: str = "127.0.0.1",
    port: Port = 8080,
    block_size: Count | None = None,
    allow_host: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    keys: Path | None = None,
    max_body_mib: Rate = _DEFAULTS.max_body_bytes / 2**20,
    health_interval: Rate = _DEFAULTS.health_interval_s,
    connect_timeout: Rate = _DEFAULTS.connect_timeout_s,
    idle_timeout: Rate = _DEFAULTS.idle_timeout_s,
    drain: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 30,
    json: Json = False,
) -> None:
    """Serve an OpenAI endpoint over a fleet of engines and send each request where its prompt is cached.

    Once it listens it prints one line of JSON with its `url`. /v1/completions, /v1/chat/completions and /v1/models
    are for clients; /route, /query, /workers, /policy, /stats and /metrics for whoever runs it; /health and /ready
    for probes. SIGINT and SIGTERM let open requests end; a second one ends at once.

    Tokens come from the environment: KVEVENTS_CLIENT_TOKEN opens /v1/*, KVEVENTS_ADMIN_TOKEN all else (or a file,
    named by the same variable with _FILE). They are required to listen on anything but loopback.

    Example: `kvevents serve --worker http://127.0.0.1:30000 --worker http://127.0.0.1:30001`

    Args:
        worker: Base URL of an engine; once for each. Its event sockets are found through its /server_info.
        policy: How a worker is chosen: kv, round_robin, random or least_loaded. POST /policy changes it.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        block_size: Tokens in a block of the index; by default that of the engines.
        allow_host: Host that workers added by POST /workers may have, besides those of --worker; once for each.
        keys: A file of `kvevents keys` that ends in .key_secret, of a consumer that the engines list.
        max_body_mib: Larger requests are refused.
        health_interval: Seconds between two probes of a worker.
        connect_timeout: Seconds until a worker that accepts no connection is passed by.
        idle_timeout: Seconds of silence after which a worker counts as failed.
        drain: Seconds that open requests have to end after a signal.
        json: The line is JSON with or without it.
    """
    del json
    logging.basicConfig(level=logging.WARNING, format="kvevents: %(message)s")
    settings = Settings(
        workers=worker,
        policy=policy,
        block_size=block_size,
        allowed_hosts=allow_host,
        keys=consumer_keys(keys),
        max_body_bytes=int(max_body_mib * 2**20),
        health_interval_s=health_interval,
        connect_timeout_s=connect_timeout,
        idle_timeout_s=idle_timeout,
        client_token=token_from(os.environ, "KVEVENTS_CLIENT_TOKEN"),
        admin_token=token_from(os.environ, "KVEVENTS_ADMIN_TOKEN"),
    )
    run_router(settings, host=host, port=port, drain_s=drain, announce=print_json)
