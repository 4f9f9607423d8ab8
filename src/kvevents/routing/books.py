"""The books: which requests are open, and what they cost where."""

from collections.abc import Collection

from kvevents.routing.load import Load


class InFlight:
    """One open request: what its end has to take back."""

    __slots__ = ("held", "id", "load", "prefill", "prefilled")

    def __init__(self, number: int, load: Load, *, prefill: int, held: int, now: float) -> None:
        self.id = number
        self.load = load
        self.prefill = prefill
        self.held = held
        self.prefilled = False
        load.queued += prefill
        load.held += held
        load.requests += 1
        load.opened[number] = load.prefilling[number] = now

    def prefill_done(self) -> bool:
        """Move the request from computing its prompt to producing its answer. False when it had been moved."""
        if self.prefilled:
            return False
        self.prefilled = True
        self.load.queued -= self.prefill
        self.load.decode += self.held
        del self.load.prefilling[self.id]
        return True

    def end(self) -> None:
        """Take the request off its load."""
        if self.prefilled:
            self.load.decode -= self.held
        else:
            self.load.queued -= self.prefill
            del self.load.prefilling[self.id]
        self.load.held -= self.held
        self.load.requests -= 1
        del self.load.opened[self.id]


class Books:
    """Open requests, and the age of the work that was done. Not thread-safe.

    Args:
        memory_tokens: recent work is half forgotten after so many computed tokens per candidate.
        request_tokens: what answering one request counts for as work besides its prompt.
    """

    def __init__(self, *, memory_tokens: float, request_tokens: float) -> None:
        self._memory_tokens = memory_tokens
        self._request_tokens = request_tokens
        self._open: dict[int, InFlight] = {}
        self.age = 0.0
        """Half-lives of work that have passed."""

    def open(self, request: InFlight) -> None:
        """A request was placed."""
        self._open[request.id] = request

    def computed(self, number: int, loads: Collection[Load]) -> None:
        """A prompt is computed: work to come turns into work done, and all earlier work of `loads` gets older."""
        request = self._open.get(number)
        if request is not None and request.prefill_done():
            work = request.prefill + self._request_tokens
            older = work / (self._memory_tokens * max(1, len(loads)))
            factor = 0.5**older
            self.age += older
            for load in loads:
                load.recent *= factor
            request.load.recent += work

    def end(self, number: int) -> None:
        """A request has ended, well or not; one that is not open has no part in anything."""
        request = self._open.pop(number, None)
        if request is not None:
            request.end()
