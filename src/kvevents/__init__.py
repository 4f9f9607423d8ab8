"""KV cache events for LLM serving: record, coalesce, carry, index, route and see."""

from kvevents import errors, events
from kvevents._core import __version__

__all__ = ["__version__", "errors", "events"]
