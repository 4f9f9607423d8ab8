"""What happened in the fleet, counted."""

import msgspec


class FleetCounters(msgspec.Struct):
    """All counts since the start.

    Attributes:
        joins: workers that were taken in, those configured included.
        leaves: workers that were removed.
        drains: of them, those that were let finish what they worked on.
        refused_joins: `POST /workers` that were refused.
        probes: questions whether a worker is well.
        probes_failed: those that it did not answer well.
        went_down: times a worker went from up to down.
        discoveries: times a worker was asked for its event sources.
        discoveries_failed: times it did not say, or what it said could not be used.
        load_reads: times a worker said how busy it is.
        load_failures: times it should have, and did not.
        distrusts: times a worker's events were found not to be believed.
    """

    joins: int = 0
    leaves: int = 0
    drains: int = 0
    refused_joins: int = 0
    probes: int = 0
    probes_failed: int = 0
    went_down: int = 0
    discoveries: int = 0
    discoveries_failed: int = 0
    load_reads: int = 0
    load_failures: int = 0
    distrusts: int = 0
