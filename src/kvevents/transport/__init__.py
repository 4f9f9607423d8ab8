"""Carries batches of KV cache events from engines to whoever keeps an index."""

from kvevents.transport.capture import CaptureReader, CaptureWriter, Recorder, Replayer
from kvevents.transport.discovery import discover
from kvevents.transport.endpoints import Endpoint, binds, rank_endpoint
from kvevents.transport.publisher import PublisherStats, ZmqPublisher
from kvevents.transport.relay import Relay, RelaySettings
from kvevents.transport.security import ConsumerKeys, PublisherKeys, make_keys
from kvevents.transport.settings import DeliverySettings
from kvevents.transport.sink import EventSink
from kvevents.transport.snapshot import Snapshot, SnapshotProvider
from kvevents.transport.snapshot_client import SnapshotDownload
from kvevents.transport.snapshot_server import SnapshotServer
from kvevents.transport.source import Source, rank_sources
from kvevents.transport.state import Reason, SourceCounters, SourceState, State
from kvevents.transport.subscriber import Subscriber

__all__ = [
    "CaptureReader",
    "CaptureWriter",
    "ConsumerKeys",
    "DeliverySettings",
    "Endpoint",
    "EventSink",
    "PublisherKeys",
    "PublisherStats",
    "Reason",
    "Recorder",
    "Relay",
    "RelaySettings",
    "Replayer",
    "Snapshot",
    "SnapshotDownload",
    "SnapshotProvider",
    "SnapshotServer",
    "Source",
    "SourceCounters",
    "SourceState",
    "State",
    "Subscriber",
    "ZmqPublisher",
    "binds",
    "discover",
    "make_keys",
    "rank_endpoint",
    "rank_sources",
]
