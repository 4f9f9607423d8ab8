"""Every error that kvevents raises on purpose."""


class KVEventsError(Exception):
    """Base of the family: catch this to catch all of them."""


class WireError(KVEventsError):
    """Bytes that are not a batch of KV cache events.

    Attributes:
        reason: what was expected and what came instead.
        offset: position of the fault, in bytes from the start of the payload.
    """

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.reason} (at byte {self.offset})"


class ConfigError(KVEventsError):
    """A setting that is wrong in itself or contradicts what a source sends."""


class TransportError(KVEventsError):
    """A socket that cannot be opened, bound, reached or kept."""


class CapacityError(KVEventsError):
    """More was asked for than there is room for.

    Attributes:
        requested: how much was asked for, in the unit the message names.
        available: how much there was.
    """

    def __init__(self, message: str, *, requested: int, available: int) -> None:
        super().__init__(message)
        self.requested = requested
        self.available = available
