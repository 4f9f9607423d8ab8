"""Who may call what: tokens, the dashboard's login, and what browsers may be made to send."""

from kvevents.server.access.access import Access
from kvevents.server.access.middleware import AccessMiddleware

__all__ = ["Access", "AccessMiddleware"]
