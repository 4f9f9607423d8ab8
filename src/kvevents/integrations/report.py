"""Says loudly how a plugin is: engines only log what goes wrong in one, and go on without it."""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import msgspec

_lock = threading.Lock()
_states: dict[str, "PluginState"] = {}  # of this process, as the engines' own registries are


class PluginState(msgspec.Struct, frozen=True):
    """How a plugin is in one process.

    Attributes:
        engine: `sglang` or `vllm`.
        status: `loaded`: the publisher can be chosen. `publishing`: it was. `impaired`: something fails, events may be
            missing. `failed`: it is not in use.
        detail: what it does, or why it does not.
        pid: of the process.
        since: unix seconds.
    """

    engine: str
    status: str
    detail: str
    pid: int
    since: float


def plugin_states() -> dict[str, PluginState]:
    """How the plugins are in this process, by engine; empty if none was loaded."""
    with _lock:
        return dict(_states)


def note(engine: str, status: str, detail: str, *, folder: Path | None = None, is_loud: bool = False) -> None:
    """Keeps how a plugin is, in the process and in a file of `folder`.

    Args:
        engine: whose plugin.
        status: see `PluginState`.
        detail: see `PluginState`.
        folder: gets `<engine>-<pid>.json`; one that cannot be written is said on stderr.
        is_loud: say it on stderr too.
    """
    state = PluginState(engine, status, detail, os.getpid(), time.time())
    with _lock:
        _states[engine] = state
    if is_loud:
        _say(f"{engine} plugin {status} in process {state.pid}: {detail}")
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{engine}-{state.pid}.json"
            path.with_suffix(".new").write_bytes(msgspec.json.encode(state))
            path.with_suffix(".new").replace(path)
        except OSError as error:
            _say(f"KVEVENTS_STATE_DIR cannot be written: {error}")


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        sys.stderr.write(f"kvevents: {text}\n")
        sys.stderr.flush()


@contextlib.contextmanager
def failing_loudly(engine: str, folder: Path | None) -> Iterator[None]:
    """Says on stderr what went wrong, before the engine's own log swallows it, and passes it on."""
    try:
        yield
    except BaseException as error:
        note(engine, "failed", f"{type(error).__name__}: {error}", folder=folder, is_loud=True)
        traceback.print_exc()
        raise
