"""Waiting for a source to come into a state."""

from kvevents.transport import Reason, SourceState, State, Subscriber
from zmq_peers import until


def reached(subscriber: Subscriber, state: State, reason: Reason | None = None) -> SourceState:
    """What is known of the source `w` once it is there."""

    def check() -> SourceState | None:
        now = subscriber.state("w")
        return now if now.state is state and reason in {None, now.code} else None

    result: SourceState = until(check, f"{state} for {reason}")
    return result
