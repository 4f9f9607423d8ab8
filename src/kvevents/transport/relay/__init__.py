"""Beside an engine: follows its events, and publishes them anew, coalesced, as if it were the engine.

from kvevents.transport import discover
from kvevents.transport.relay import Relay

with Relay(discover("http://127.0.0.1:30000"), "tcp://127.0.0.1:*", replay_listen="tcp://127.0.0.1:*") as relay:
    print(relay.describe("127.0.0.1:30000"))
"""

from kvevents.transport.relay.relay import Relay
from kvevents.transport.relay.server_info import ServerInfo
from kvevents.transport.relay.settings import RelaySettings
from kvevents.transport.relay.stats import RelayStats, StreamStats

__all__ = ["Relay", "RelaySettings", "RelayStats", "ServerInfo", "StreamStats"]
