"""What an index believes against what an engine holds: by worker, rank, tier and prefix."""

from kvevents.diff.compare import Branch, DiffReport, RankDiff, TierDiff, compare
from kvevents.diff.sides import Side, capture_side, engine_side, index_side, read_index

__all__ = [
    "Branch",
    "DiffReport",
    "RankDiff",
    "Side",
    "TierDiff",
    "capture_side",
    "compare",
    "engine_side",
    "index_side",
    "read_index",
]
