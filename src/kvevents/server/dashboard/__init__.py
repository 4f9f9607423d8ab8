"""The page that shows what the router does, fed by `/stats`, `/stream` and `/prefixes` alone."""

from kvevents.server.dashboard.settings import DashboardSettings

__all__ = ["DashboardSettings"]
