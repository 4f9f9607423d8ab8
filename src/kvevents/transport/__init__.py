"""Carries batches of KV cache events from engines to whoever keeps an index."""

from kvevents.transport.discovery import discover
from kvevents.transport.endpoints import Endpoint, binds, rank_endpoint
from kvevents.transport.publisher import PublisherStats, ZmqPublisher
from kvevents.transport.source import Source, rank_sources

__all__ = [
    "Endpoint",
    "PublisherStats",
    "Source",
    "ZmqPublisher",
    "binds",
    "discover",
    "rank_endpoint",
    "rank_sources",
]
