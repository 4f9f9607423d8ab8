"""CURVE keys for ZMQ: who may read a publisher, whom a consumer believes, and nobody in between reads along."""

from kvevents.transport.security.doorkeeper import Doorkeeper
from kvevents.transport.security.keyring import MadeKeys, make_keys
from kvevents.transport.security.keys import ConsumerKeys, PublisherKeys

__all__ = ["ConsumerKeys", "Doorkeeper", "MadeKeys", "PublisherKeys", "make_keys"]
