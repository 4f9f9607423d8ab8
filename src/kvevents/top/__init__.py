"""The live view of engines, or of a router, in a terminal."""

from kvevents.top.engines import EngineFeed
from kvevents.top.picture import Feed, Picture, Row, Shown, Trend
from kvevents.top.router import RouterFeed

__all__ = ["EngineFeed", "Feed", "Picture", "RouterFeed", "Row", "Shown", "Trend"]
