"""Prometheus metrics of the router: every name, what it means, and where its figure comes from."""

from kvevents.server.metrics.metrics import CONTENT_TYPE, Metrics

__all__ = ["CONTENT_TYPE", "Metrics"]
