"""vLLM's plugin: where the environment asks for it, our publisher stands in for the one that vLLM calls `zmq`.

vLLM's configuration admits only `null` and `zmq`, so that with `KVEVENTS_VLLM=1` and

    --kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "replay_endpoint": "tcp://*:5558"}'

the batches go through an `Outlet`. vLLM calls `load` in every process (entry point `vllm.general_plugins`).
"""

import importlib
from collections.abc import Callable
from typing import Any

from kvevents.errors import ConfigError
from kvevents.integrations.engine_publisher import EnginePublisher
from kvevents.integrations.outlet import Outlet
from kvevents.integrations.report import failing_loudly, note
from kvevents.integrations.settings import PluginSettings, misspelt
from kvevents.transport import binds
from kvevents.wire import Dialect

ENGINE = "vllm"
_STOOD_IN_FOR = "zmq"
_EVENTS = "vllm.distributed.kv_events"
_ANY_PORT = "tcp://*:0"


def load() -> None:
    """What vLLM calls in each of its processes; does nothing unless `KVEVENTS_VLLM=1`. Safe to call again.

    Raises:
        ConfigError: a variable of the environment cannot work, or this vLLM keeps its publishers elsewhere.
        ImportError: vLLM's modules are not where they are expected.
    """
    with failing_loudly(ENGINE, None):
        settings = PluginSettings.from_environment()
        if not settings.stand_in:
            return
        for complaint in misspelt():
            note(ENGINE, "loaded", complaint, folder=settings.state_dir, is_loud=True)
    with failing_loudly(ENGINE, settings.state_dir):
        stand_in(importlib.import_module(_EVENTS))
        note(ENGINE, "loaded", f"stands in for the publisher {_STOOD_IN_FOR!r}", folder=settings.state_dir)


def stand_in(events: Any) -> None:
    """Puts our publisher in the place of vLLM's, once.

    Args:
        events: vLLM's module of that name.

    Raises:
        ConfigError: its factory is another than what we know.
    """
    registry = getattr(events.EventPublisherFactory, "_registry", None)
    if not isinstance(registry, dict) or _STOOD_IN_FOR not in registry:
        raise ConfigError(
            f"this vLLM's EventPublisherFactory has no registry with {_STOOD_IN_FOR!r} in it:"
            " its version is not known to kvevents; unset KVEVENTS_VLLM"
        )
    if not getattr(registry[_STOOD_IN_FOR], "is_kvevents", False):
        registry[_STOOD_IN_FOR] = make_publisher(events, registry[_STOOD_IN_FOR])


def make_publisher(events: Any, theirs: Any) -> Callable[..., Any]:
    """The publisher's class, below vLLM's own base class.

    Args:
        events: vLLM's module of that name.
        theirs: its ZMQ publisher, whose way to tell bind from connect and to find a port is kept.
    """
    dialect: Dialect = "vllm-array" if events.BlockStored.__struct_config__.array_like else "vllm"

    class KVEventsPublisher(EnginePublisher, events.EventPublisher):  # type: ignore[misc] # the base is vLLM's, at run time
        """Publishes vLLM's batches. The arguments are those of vLLM's factory."""

        engine = ENGINE
        rank_field = "data_parallel_rank"

        def __init__(
            self,
            *,
            data_parallel_rank: int,
            endpoint: str = "tcp://*:5557",
            replay_endpoint: str | None = None,
            buffer_steps: int = 10_000,
            hwm: int = 100_000,
            max_queue_size: int = 100_000,
            topic: str = "",
            **unknown: object,
        ) -> None:
            def outlet(settings: PluginSettings) -> Outlet:
                return Outlet(
                    ENGINE,
                    settings,
                    rank=data_parallel_rank,
                    endpoint=_with_host(events, endpoint),
                    replay_endpoint=replay_endpoint and _with_host(events, replay_endpoint),
                    bind=_binds(theirs, endpoint),
                    topic=topic,
                    buffer_steps=buffer_steps,
                    hwm=hwm,
                    max_queue_size=max_queue_size,
                    dialect=dialect,
                )

            super().__init__(data_parallel_rank)
            self._start(data_parallel_rank, outlet, unknown)
            zmq = self._outlet.zmq
            self._config = events.KVEventsConfig(
                enable_kv_cache_events=True,
                publisher=_STOOD_IN_FOR,
                endpoint=endpoint if zmq is None else zmq.endpoint,
                replay_endpoint=replay_endpoint if zmq is None else zmq.replay_endpoint,
                buffer_steps=buffer_steps,
                hwm=hwm,
                max_queue_size=max_queue_size,
                topic=topic,
            )

        def get_publisher_config(self) -> Any:
            """The settings in use, with the real addresses."""
            return self._config

    return KVEventsPublisher


def _binds(theirs: Any, endpoint: str) -> bool:
    """As this version of vLLM decides, and what cannot be connected to."""
    decide: Callable[[str], bool] = getattr(theirs, "_is_bind_endpoint", binds)
    return decide(endpoint) or binds(endpoint)


def _with_host(events: Any, endpoint: str) -> str:
    """An address on this node for the one that leaves everything open: others are told it."""
    if endpoint != _ANY_PORT or not hasattr(events, "get_ip"):
        return endpoint
    host = events.get_ip()
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - what get_ip says when it knows none
        raise ConfigError("tcp://*:0 needs this node's IP; set VLLM_HOST_IP")
    return f"tcp://[{host}]:0" if ":" in host else f"tcp://{host}:0"
