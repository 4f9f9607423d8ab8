"""How the router is set up: one section for each of its parts, from a file, flags and the environment."""

from kvevents.server.configuration.listen import ListenSettings
from kvevents.server.configuration.secret import Secret
from kvevents.server.configuration.security import SecuritySettings
from kvevents.server.configuration.settings import Settings
from kvevents.server.configuration.worker import WorkerSettings

__all__ = ["ListenSettings", "Secret", "SecuritySettings", "Settings", "WorkerSettings"]
