"""The way of a completion through the router."""
