"""`kvevents serve`: the router."""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from kvevents.cli import DONE, USAGE
from kvevents.cli.options import Count, Port
from kvevents.cli.output import Json, note, print_json
from kvevents.cli.plan import plan_table
from kvevents.cli.standard import ResultConsole
from kvevents.errors import ConfigError
from kvevents.server.configuration.check import find_problems, make_plan
from kvevents.server.configuration.load import InvalidSettingsError, Override, load_settings
from kvevents.server.configuration.reference import annotated_defaults
from kvevents.server.run import run_router
from kvevents.server.telemetry.logs import set_up_logging
from kvevents.server.telemetry.settings import Level

Repeated = Annotated[tuple[str, ...], Parameter(negative=())]


def serve(
    *,
    worker: Repeated = (),
    config: Path | None = None,
    policy: str | None = None,
    host: str | None = None,
    port: Port | None = None,
    block_size: Count | None = None,
    allow_host: Repeated = (),
    keys: Path | None = None,
    log_format: Literal["text", "json"] | None = None,
    log_level: Level | None = None,
    set: Annotated[Repeated, Parameter(name="--set")] = (),  # noqa: A002 (the flag's name)
    check: Annotated[bool, Parameter(negative=())] = False,
    defaults: Annotated[bool, Parameter(negative=())] = False,
    json: Json = False,
) -> int | None:
    """Serve an OpenAI endpoint over a fleet of engines and send each request where its prompt is cached.

    Once it listens it prints one line of JSON with its `url`. /v1/completions, /v1/chat/completions and /v1/models
    are for clients; /route, /query, /workers, /policy, /stats and /metrics for whoever runs it; /health and /ready
    for probes. SIGINT and SIGTERM let open requests end; a second one ends at once.

    Tokens come from the environment: KVEVENTS_CLIENT_TOKEN opens /v1/*, KVEVENTS_ADMIN_TOKEN all else (or a file,
    named by the same variable with _FILE). They are required to listen on anything but loopback.

    Example: `kvevents serve --worker http://127.0.0.1:30000 --worker http://127.0.0.1:30001`

    Args:
        worker: Base URL of an engine; once for each, in place of those in --config. Its event sockets are found through
            its /server_info.
        config: A TOML file with all settings; --defaults prints one with every key.
        policy: How a worker is chosen, such as kv or round_robin. POST /policy changes it.
        host: Address to listen on; by default 127.0.0.1.
        port: Port to listen on, by default 8080; 0 takes a free one.
        block_size: Tokens in a block of the index; by default that of the engines.
        allow_host: Host that workers added by POST /workers may have, besides those of --worker; once for each.
        keys: A file of `kvevents keys` that ends in .key_secret, of a consumer that the engines list.
        log_format: Of the lines on stderr; by default text.
        log_level: From where on something is a line, by default warning; with info, set telemetry.access_log=info for a
            line per request.
        set: Any other setting as section.key=value, in TOML, such as proxy.max_body_bytes=1000000; once for each.
        defaults: Print a file with every setting, what it is and its default, and do nothing else.
        check: Say what is wrong with the settings, with exit code 2, or what they would run, and do nothing else.
        json: What --check says as JSON. The line of a running router is JSON with or without it.
    """
    if defaults:
        print(annotated_defaults(), end="")
        return None
    flags = {
        "--policy": ("routing.policy", policy),
        "--host": ("listen.host", host),
        "--port": ("listen.port", port),
        "--block-size": ("fleet.block_size", block_size),
        "--allow-host": ("security.worker_hosts", list(allow_host) or None),
        "--keys": ("events.keys", None if keys is None else str(keys)),
        "--log-format": ("telemetry.log_format", log_format),
        "--log-level": ("telemetry.log_level", log_level),
        "--worker": ("worker", [{"url": url} for url in worker] or None),
    }
    overrides = [Override(flag, key, value) for flag, (key, value) in flags.items() if value is not None]
    overrides += _assignments(set)
    if check:
        return _check(config, overrides, as_json=json)
    settings = load_settings(config, overrides=overrides)
    set_up_logging(settings.telemetry)
    run_router(settings, announce=print_json)
    return None


def _check(config: Path | None, overrides: list[Override], *, as_json: bool) -> int:
    """Print what would run, or each thing that is wrong on a line of its own; the exit code."""
    try:
        settings = load_settings(config, overrides=overrides)
        problems: Sequence[str] = find_problems(settings)
    except InvalidSettingsError as error:
        problems = error.problems
    if problems:
        if as_json:
            print_json({"ok": False, "problems": problems})
        else:
            for problem in problems:
                note(f"kvevents: {problem}")
        return USAGE
    plan = make_plan(settings)
    if as_json:
        print_json({"ok": True, **msgspec.structs.asdict(plan)})
    else:
        ResultConsole(soft_wrap=True).print(plan_table(plan))
    return DONE


def _assignments(words: tuple[str, ...]) -> Iterator[Override]:
    """What each `section.key=value` sets.

    Raises:
        ConfigError: one is no assignment, or its value is not TOML.
    """
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or "." not in key:
            raise ConfigError(f"--set: expected section.key=value, got {key!r}")
        yield Override(f"--set {key}", key, _value(text))


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a string without quotes
