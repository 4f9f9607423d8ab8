"""Sessions of the dashboard: what a browser holds in place of the token."""

import base64
import binascii
import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable

_HEAD = struct.Struct(">Q16s")
"""When it ends, unix seconds, and its id."""


class Sessions:
    """Makes sessions and knows them again. They say themselves when they end, and a signature says that they are ours.

    The key is drawn anew at each start, so that a restart ends all of them.

    Args:
        lifetime_s: how long one holds.
        now: unix seconds.
    """

    def __init__(self, *, lifetime_s: float, now: Callable[[], float]) -> None:
        self.lifetime_s = lifetime_s
        self._now = now
        self._key = secrets.token_bytes(32)
        self._ended: dict[bytes, int] = {}

    def begin(self) -> str:
        """A new session."""
        head = _HEAD.pack(int(self._now() + self.lifetime_s), secrets.token_bytes(16))
        return base64.urlsafe_b64encode(head + self._sign(head)).decode()

    def holds(self, session: str) -> bool:
        """Whether it is ours, has not expired and was not ended."""
        return self._read(session) is not None

    def end(self, session: str) -> bool:
        """End a session before its time; False when it did not hold."""
        known = self._read(session)
        if known is None:
            return False
        now = self._now()
        self._ended = {name: until for name, until in self._ended.items() if until > now}
        until, name = known
        self._ended[name] = until
        return True

    def _read(self, session: str) -> tuple[int, bytes] | None:
        try:
            raw = base64.urlsafe_b64decode(session.encode("ascii"))
        except (UnicodeEncodeError, binascii.Error):
            return None
        head, signature = raw[: _HEAD.size], raw[_HEAD.size :]
        if not hmac.compare_digest(self._sign(head), signature):
            return None
        until, name = _HEAD.unpack(head)
        return None if until <= self._now() or name in self._ended else (until, name)

    def _sign(self, head: bytes) -> bytes:
        return hmac.digest(self._key, head, hashlib.sha256)
