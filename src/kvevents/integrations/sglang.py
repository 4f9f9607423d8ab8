"""SGLang's plugin: offers the publisher `kvevents`, and, where that is asked for, our recorder in place of its own.

SGLang calls `load` in every process that it spawns (entry point `sglang.srt.plugins`). Then

    --kv-events-config '{"publisher": "kvevents", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'

chooses the publisher; what it does is said by the environment. It gets the batches of both of SGLang's tree cores, the
one in Rust (its default) and the one in Python; only the latter's recorder can be replaced.
"""

import atexit
import importlib
import os
from collections.abc import Callable
from typing import Any

from kvevents.errors import ConfigError
from kvevents.integrations.engine_publisher import EnginePublisher
from kvevents.integrations.outlet import Outlet
from kvevents.integrations.report import failing_loudly, note
from kvevents.integrations.settings import PluginSettings, misspelt
from kvevents.integrations.sglang_recorder import make_recorder
from kvevents.transport import Endpoint, ZmqPublisher, binds
from kvevents.wire import Dialect

ENGINE = "sglang"
PUBLISHER = "kvevents"
_EVENTS = "sglang.srt.disaggregation.kv_events"
_RECORDER = "sglang.srt.mem_cache.events.KVCacheEventRecorder"
_HOOKS = "sglang.srt.plugins.hook_registry"


def load() -> None:
    """What SGLang calls in each of its processes; safe to call again.

    Raises:
        ConfigError: a variable of the environment cannot work, or the name `kvevents` is taken.
        ImportError: SGLang's modules are not where they are expected.
    """
    with failing_loudly(ENGINE, None):
        settings = PluginSettings.from_environment()
        for complaint in misspelt():
            note(ENGINE, "loaded", complaint, folder=settings.state_dir, is_loud=True)
    with failing_loudly(ENGINE, settings.state_dir):
        offer(importlib.import_module(_EVENTS))
        done = f"publisher {PUBLISHER!r} can be chosen"
        if settings.recorder:
            replace_recorder()
            done += "; the Python recorder is replaced"
        note(ENGINE, "loaded", done, folder=settings.state_dir)


def offer(events: Any) -> None:
    """Registers the publisher in SGLang's factory, once.

    Args:
        events: SGLang's module of that name.

    Raises:
        ConfigError: another publisher has the name.
    """
    factory = events.EventPublisherFactory
    try:
        factory.register_publisher(PUBLISHER, make_publisher(events))
    except KeyError:
        taken = getattr(factory, "_registry", {}).get(PUBLISHER)
        if not getattr(taken, "is_kvevents", False):
            raise ConfigError(f"SGLang has another publisher {PUBLISHER!r} already: {taken!r}") from None


def replace_recorder() -> None:
    """Has SGLang put our recorder in the place of its Python recorder, wherever that was imported to."""
    events = importlib.import_module(_RECORDER.rpartition(".")[0])
    hooks = importlib.import_module(_HOOKS)
    theirs = events.KVCacheEventRecorder
    if not getattr(theirs, "is_kvevents", False):
        hooks.HookRegistry.register(_RECORDER, make_recorder(events), hooks.HookType.REPLACE)


def make_publisher(events: Any) -> Callable[..., Any]:
    """The publisher's class, below SGLang's own base class."""
    array_like = events.BlockStored.__struct_config__.array_like
    dialect: Dialect = "sglang-array" if array_like else "sglang"

    class KVEventsPublisher(EnginePublisher, events.EventPublisher):  # type: ignore[misc] # the base is SGLang's, at run time
        """Publishes SGLang's batches. The arguments are those of SGLang's factory."""

        engine = ENGINE
        rank_field = "attn_dp_rank"

        def __init__(
            self,
            *,
            attn_dp_rank: int,
            endpoint: str = "tcp://*:5557",
            replay_endpoint: str | None = None,
            buffer_steps: int = 10_000,
            hwm: int = 100_000,
            max_queue_size: int = 100_000,
            topic: str = "",
            bind: bool | None = None,
            **unknown: object,
        ) -> None:
            def outlet(settings: PluginSettings) -> Outlet:
                return Outlet(
                    ENGINE,
                    settings,
                    rank=attn_dp_rank,
                    endpoint=endpoint,
                    replay_endpoint=replay_endpoint,
                    bind=bind,
                    topic=topic,
                    buffer_steps=buffer_steps,
                    hwm=hwm,
                    max_queue_size=max_queue_size,
                    dialect=dialect,
                )

            self._start(attn_dp_rank, outlet, unknown)
            self._is_bound = binds(endpoint) if bind is None else bind
            self._topic = topic
            atexit.register(self.shutdown)

        def shutdown(self) -> None:
            """Sends what is queued and closes; idempotent."""
            atexit.unregister(self.shutdown)
            super().shutdown()

        def describe_local_source(self, block_size: int) -> dict[str, Any] | None:
            """Where a process on this machine can subscribe; None if the socket connects, or is inproc."""
            return _local_source(self._outlet.zmq, self._rank, self._topic, block_size) if self._is_bound else None

    return KVEventsPublisher


def _local_source(zmq: ZmqPublisher | None, rank: int, topic: str, block_size: int) -> dict[str, Any] | None:
    live = None if zmq is None else _local(zmq.endpoint)
    if zmq is None or live is None:
        return None
    source = {"dp_rank": rank, "endpoint": live, "topic": topic, "block_size": block_size}
    replay = None if zmq.replay_endpoint is None else _local(zmq.replay_endpoint)
    return source if replay is None else source | {"replay_endpoint": replay}


def _local(endpoint: str) -> str | None:
    """An address in use as another process of this machine reaches it."""
    parsed = Endpoint.parse(endpoint)
    if parsed.transport == "ipc":
        return endpoint if endpoint.startswith("ipc://@") else f"ipc://{os.path.abspath(endpoint[len('ipc://') :])}"
    if parsed.transport != "tcp":
        return None
    return parsed.to_connect()
