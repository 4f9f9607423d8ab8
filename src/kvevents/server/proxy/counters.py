"""What the proxy counts."""

import msgspec


class Counters(msgspec.Struct):
    """Sums since the start.

    Attributes:
        connections: clients that connected.
        accepted: requests whose head was read and which are for a worker.
        rejected: requests that were refused without a worker's answer, by error code.
        queued: requests that had to wait for a worker with room.
        queue_timeouts: of them, those that waited too long.
        retried: attempts on another worker after one had failed.
        reconnected: requests sent again to the same worker, on a new connection: the old one had just been closed.
        client_left: requests whose client left before its answer was complete.
        client_stalled: of them, those cut off because they did not read.
        slow_heads: connections closed because a request's head took too long.
        slow_bodies: connections closed because a request's body took too long.
        idle_closed: connections closed because nothing came on them.
        refused_connections: connections refused because there were too many.
        broken_streams: answers that ended in the middle because their worker failed.
        first_byte_timeouts: workers that began no answer in time.
        idle_timeouts: workers that stopped in the middle of one, or gave none.
        garbage: replies that were not HTTP, or contradicted themselves.
        loops: requests that had been here before.
        unreported: answers with status 200 whose end gave no usage.
    """

    connections: int = 0
    accepted: int = 0
    rejected: dict[str, int] = {}
    queued: int = 0
    queue_timeouts: int = 0
    retried: int = 0
    reconnected: int = 0
    client_left: int = 0
    client_stalled: int = 0
    slow_heads: int = 0
    slow_bodies: int = 0
    idle_closed: int = 0
    refused_connections: int = 0
    broken_streams: int = 0
    first_byte_timeouts: int = 0
    idle_timeouts: int = 0
    garbage: int = 0
    loops: int = 0
    unreported: int = 0

    def reject(self, code: str) -> None:
        """Count a refusal."""
        self.rejected[code] = self.rejected.get(code, 0) + 1
