"""Messages of the two sockets, as SGLang and vLLM speak them, to frames and back.

Live: `[topic, sequence, payload]`. A replay request is `[empty, start]`; its answers are
`[empty, topic, sequence, payload]`, from older engines `[empty, sequence, payload]`, and an end mark
with sequence -1 and no payload. Sequences are 8 bytes, big-endian.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kvevents.errors import WireError

SEQUENCE_BYTES = 8
END_SEQUENCE = b"\xff" * SEQUENCE_BYTES
END_MARK = (b"", END_SEQUENCE, b"")
"""Topic, sequence and payload of the message that ends a replay."""


class Message(NamedTuple):
    """One batch as it travels.

    Attributes:
        sequence: its number in the publisher's count, from 0.
        payload: the encoded batch.
        topic: what it was published under; None where the form has no room for it.
    """

    sequence: int
    payload: bytes
    topic: bytes | None


def sequence_frame(sequence: int) -> bytes:
    """A sequence number as a frame."""
    return sequence.to_bytes(SEQUENCE_BYTES, "big")


def read_live(frames: Sequence[bytes]) -> Message:
    """A message of the live socket.

    Raises:
        WireError: if it is not `[topic, sequence, payload]`.
    """
    if len(frames) != 3:
        raise WireError(f"expected 3 frames [topic, sequence, payload], got {len(frames)}", 0)
    topic, sequence, payload = frames
    return Message(_sequence(sequence), payload, topic)


def read_reply(frames: Sequence[bytes]) -> Message | None:
    """One answer to a replay request; None is the end mark.

    Raises:
        WireError: if it is in neither of the two forms.
    """
    if len(frames) not in {3, 4} or frames[0]:
        raise WireError(
            f"expected [empty, topic, sequence, payload] or [empty, sequence, payload], got {len(frames)} frames"
            + (f" that begin with {bytes(frames[0][:16])!r}" if frames and frames[0] else ""),
            0,
        )
    sequence, payload = frames[-2:]
    if sequence == END_SEQUENCE:
        return None
    return Message(_sequence(sequence), payload, frames[1] if len(frames) == 4 else None)


def read_request(frames: Sequence[bytes]) -> int | None:
    """The start of a replay request as a ROUTER sees it (`[identity, empty, start]`); None if it is no request."""
    if len(frames) != 3 or frames[1] or len(frames[2]) != SEQUENCE_BYTES:
        return None
    return int.from_bytes(frames[2], "big")


def _sequence(frame: bytes) -> int:
    if len(frame) != SEQUENCE_BYTES:
        raise WireError(f"expected a sequence of {SEQUENCE_BYTES} bytes, got {len(frame)}", 0)
    if frame == END_SEQUENCE:
        raise WireError("expected a sequence from 0, got the end mark -1", 0)
    return int.from_bytes(frame, "big")
