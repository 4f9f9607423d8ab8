"""The router as a service: OpenAI's endpoints over a fleet, and its decisions, workers and figures."""

from kvevents.server.app import create_app
from kvevents.server.configuration import Secret, Settings, WorkerSettings

__all__ = ["Secret", "Settings", "WorkerSettings", "create_app"]
