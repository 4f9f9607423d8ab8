"""What our publishers in the engines' factories have in common."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec

from kvevents.integrations.outlet import Outlet, OutletStats
from kvevents.integrations.report import failing_loudly, note
from kvevents.integrations.settings import PluginSettings


class EnginePublisher:
    """Publishes an engine's batches through an `Outlet`; stands before the engine's own base class.

    Attributes:
        is_kvevents: tells it from whatever else a factory may have under its name.
        engine: `sglang` or `vllm`.
        rank_field: what the engine calls the rank in its batches.
    """

    is_kvevents = True
    engine: ClassVar[str]
    rank_field: ClassVar[str]
    _is_open: bool

    def publish(self, events: Any) -> None:
        """Queues a batch of the engine's, with its rank where it has none; never waits."""
        if not self._is_open:
            raise RuntimeError("Publisher is closed")
        if getattr(events, self.rank_field) is None:
            setattr(events, self.rank_field, self._rank)
        self._outlet.publish(self._encode(events))

    def shutdown(self) -> None:
        """Sends what is queued and closes; idempotent."""
        if self._is_open:
            self._is_open = False
            self._outlet.close()

    def stats(self) -> OutletStats:
        """Counters."""
        return self._outlet.stats()

    def _start(self, rank: int, make_outlet: Callable[[PluginSettings], Outlet], unknown: Mapping[str, object]) -> None:
        settings = PluginSettings.from_environment()
        with failing_loudly(self.engine, settings.state_dir):
            self._outlet = make_outlet(settings)
        if unknown:
            names = ", ".join(sorted(unknown))
            note(self.engine, "publishing", f"unknown settings are not used: {names}", is_loud=True)
        self._rank = rank
        self._encode = msgspec.msgpack.Encoder().encode
        self._is_open = True
