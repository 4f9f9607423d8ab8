"""SGLang's block hashes in plain Python: what the core is compared with."""

import hashlib
import struct
from collections.abc import Sequence

Unit = int | tuple[int, int]


def page_digest(prior: bytes | None, units: Sequence[Unit]) -> bytes:
    """The digest of one page of token ids or pairs."""
    ids = [token for unit in units for token in (unit if isinstance(unit, tuple) else (unit,))]
    wide = any(token > 0xFFFF_FFFF for token in ids)
    body = struct.pack(f"<{len(ids)}{'Q' if wide else 'I'}", *ids)
    return hashlib.sha256((prior or b"") + (b"\xff" if wide else b"") + body).digest()


def digests(units: Sequence[Unit], page_size: int, salt: str | None, prior: bytes | None = None) -> list[bytes]:
    """The digests of a run of pages, a partial last one included."""
    if prior is None and salt:
        prior = hashlib.sha256(b"sglang-cache-salt-v1\0" + salt.encode()).digest()
    found = []
    for start in range(0, len(units), page_size):
        prior = page_digest(prior, units[start : start + page_size])
        found.append(prior)
    return found


def block_id(digest: bytes) -> int:
    """What engines announce for a page."""
    return int.from_bytes(digest[:8], "big", signed=True)


def wrapped(block: int, extra_key: str | None, salt: str | None) -> int:
    """The id inside of a namespace."""
    parts = b"".join(
        b"\0" if part is None else b"\1" + struct.pack("<Q", len(part.encode())) + part.encode()
        for part in (extra_key, salt)
    )
    seed = hashlib.sha256(b"sglang-kv-event-namespace-v1" + parts).digest()
    return block_id(hashlib.sha256(seed + struct.pack(">q", block)).digest())
