"""The workers: who is there, who answers, how busy they are, and whose events feed the index."""

from kvevents.server.fleet.fleet import Fleet
from kvevents.server.fleet.sources import Discover, EventReceiver, Subscribe
from kvevents.server.fleet.worker import Worker

__all__ = ["Discover", "EventReceiver", "Fleet", "Subscribe", "Worker"]
