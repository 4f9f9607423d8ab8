"""KV cache events over NATS JetStream: one durable log for a fleet, a registry of its workers, and snapshots.

Needs the extra `nats`. What is where on the broker, for the fleet `f`:

    stream KVEVENTS_f             subject kvevents.f.<worker>.<rank>, one message a batch
    KV bucket KVEVENTS_f_workers  one record a worker and rank, renewed as long as its publisher lives
    object store KVEVENTS_f_snapshots   the index as of one place in the stream
"""

import importlib.util

if importlib.util.find_spec("nats") is None:
    raise ImportError(
        "kvevents.transport.jetstream needs nats-py, which is not installed: pip install 'kvevents[nats]'"
    )

from kvevents.transport.jetstream.access import NatsAccess
from kvevents.transport.jetstream.broker import BrokerStatus
from kvevents.transport.jetstream.publisher import JetStreamPublisher, JetStreamPublisherStats
from kvevents.transport.jetstream.registry import WorkerRecord
from kvevents.transport.jetstream.settings import JetStreamSettings
from kvevents.transport.jetstream.snapshots import SnapshotIndex
from kvevents.transport.jetstream.subscriber import JetStreamSubscriber

__all__ = [
    "BrokerStatus",
    "JetStreamPublisher",
    "JetStreamPublisherStats",
    "JetStreamSettings",
    "JetStreamSubscriber",
    "NatsAccess",
    "SnapshotIndex",
    "WorkerRecord",
]
