"""Prefill and decode on two workers: what the request says about it, and the prefill's own way.

As SGLang's routers do it: both workers get the same body with three more fields, `bootstrap_host` and
`bootstrap_port`, where the prefill worker hands over what it computed, and `bootstrap_room`, the number that the two
meet under, from 0 to 2**63 - 1. A request with several prompts or choices has a list of each. The client is answered by
the decode worker.
"""

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import msgspec

from kvevents.server.proxy.deadlines import NEVER
from kvevents.server.proxy.delivery import Delivery
from kvevents.server.proxy.heads import ReplyHead
from kvevents.server.proxy.upstream import Taker

if TYPE_CHECKING:
    from kvevents.server.proxy.proxy import Proxy

_ROOMS = 2**63


class _Batch(msgspec.Struct):
    """What makes one request several."""

    n: int | None = None
    prompt: Any = None
    text: Any = None
    input_ids: Any = None

    def size(self) -> int | None:
        """Sequences in it; None when it is one and no list."""
        if self.n is not None and self.n > 1:
            return self.n
        for prompts in (self.prompt, self.text, self.input_ids):
            if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
                return len(prompts)
        return None


_decode = msgspec.json.Decoder(_Batch).decode


def bootstrap_rooms(number: int, *, ranks: int, dp_rank: int) -> list[int]:
    """Rooms that nobody else has, whose remainder is the prefill's rank: that is how SGLang finds it."""
    return [secrets.randbelow(_ROOMS // ranks) * ranks + dp_rank for _ in range(number)]


def with_bootstrap(body: bytes, *, url: str, port: int | None, ranks: int = 1, dp_rank: int = 0) -> bytes:
    """A JSON object with the fields of disaggregation at its end, everything else untouched.

    At the end, since where a name comes twice readers take the last: a client must not say where the cache is sent.

    Args:
        body: a JSON object.
        url: base URL of the prefill worker.
        port: its bootstrap port; None lets SGLang take its default.
        ranks: its data-parallel ranks.
        dp_rank: the one that was chosen.

    Raises:
        ValueError: it is none.
    """
    start = body.rstrip(b" \t\r\n")
    if not (start.endswith(b"}") and body.lstrip(b" \t\r\n").startswith(b"{")):
        raise ValueError("expected a JSON object")
    try:
        size = _decode(body).size()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    host = urlsplit(url).hostname
    rooms: Sequence[int] = bootstrap_rooms(size or 1, ranks=ranks, dp_rank=dp_rank)
    fields: dict[str, Any] = {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": rooms[0]}
    if size is not None:
        fields = {"bootstrap_host": [host] * size, "bootstrap_port": [port] * size, "bootstrap_room": rooms}
    if ranks > 1:
        fields["disagg_prefill_dp_rank"] = dp_rank
    inner = start[:-1].rstrip(b" \t\r\n")
    return inner + (b"" if inner.endswith(b"{") else b",") + msgspec.json.encode(fields)[1:]


def _unread(_piece: bytes) -> None:
    """Takes a body that nobody reads."""


class PrefillOwner(Protocol):
    """Whose request is computed elsewhere."""

    def on_prefill_ended(self) -> None:
        """The prefill worker is done, and has answered well."""

    def on_prefill_failed(self, reason: str) -> None:
        """It has not."""


class Prefill:
    """A request on its way to the prefill worker. Its answer is read to the end and thrown away.

    Attributes:
        deadline: when the worker has had its time.
    """

    def __init__(self, proxy: "Proxy", owner: PrefillOwner, url: str, head: bytes, body: bytes) -> None:
        self._proxy = proxy
        self._owner = owner
        self._delivery = Delivery(proxy.pool, self, url, head, body)
        self._status = 0
        self.deadline = NEVER

    def start(self) -> None:
        """Send it."""
        self._proxy.deadlines.watch(self)
        self.deadline = self._proxy.now() + self._proxy.settings.connect_timeout_s
        self._delivery.start()

    def drop(self) -> None:
        """It is not needed any more."""
        self._end()
        self._delivery.drop()

    def late(self) -> None:
        reason = "no connection in time" if self._delivery.upstream is None else "sent nothing for too long"
        self.drop()
        self._owner.on_prefill_failed(reason)

    def on_sent(self) -> None:
        self.deadline = self._proxy.now() + self._proxy.settings.idle_timeout_s

    def on_unreachable(self, reason: str, *, is_delivered: bool) -> None:  # noqa: ARG002  it fails either way
        self._end()
        self._owner.on_prefill_failed(reason)

    def on_head(self, head: ReplyHead) -> Taker:
        self._status = head.status
        return _unread

    def on_data(self, data: bytes, *, is_complete: bool) -> None:  # noqa: ARG002  nobody reads it
        if is_complete:
            self._end()
            self._delivery.complete()
            if self._status == 200:
                self._owner.on_prefill_ended()
            else:
                self._owner.on_prefill_failed(f"answered with status {self._status}")

    def on_failure(self, reason: str, *, is_garbage: bool, has_begun: bool) -> None:  # noqa: ARG002  it fails either way
        if not self._delivery.reconnect(has_begun=has_begun):
            self._end()
            self._owner.on_prefill_failed(reason)

    def _end(self) -> None:
        self._proxy.deadlines.forget(self)
        self.deadline = NEVER
