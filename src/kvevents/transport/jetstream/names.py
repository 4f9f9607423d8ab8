"""Names on the broker: of a fleet's stream and buckets, of a worker's subject, and of a message."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from kvevents.errors import ConfigError, WireError

_FLEET = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PLAIN = re.compile(rb"[A-Za-z0-9_-]")
_ESCAPE = "="
MESSAGE_ID = "Nats-Msg-Id"


def to_token(name: str) -> str:
    """A worker's id as one token of a subject or key: other bytes than letters, digits, `-`, `_` become `=XX`."""
    return "".join(chr(byte) if _PLAIN.fullmatch(bytes([byte])) else f"{_ESCAPE}{byte:02X}" for byte in name.encode())


def from_token(token: str) -> str:
    """The worker's id that a token stands for.

    Raises:
        WireError: it is none of ours.
    """
    head, *escaped = token.split(_ESCAPE)
    try:
        return (
            head.encode("ascii") + b"".join(bytes.fromhex(part[:2]) + part[2:].encode("ascii") for part in escaped)
        ).decode()
    except ValueError as error:
        raise WireError(f"{token!r} is no worker's id as kvevents writes it: {error}", 0) from None


@dataclass(frozen=True, slots=True)
class Names:
    """What a fleet's things are called.

    Attributes:
        fleet: letters, digits, `-` and `_`, at most 64.

    Raises:
        ConfigError: another name.
    """

    fleet: str

    def __post_init__(self) -> None:
        if not _FLEET.fullmatch(self.fleet):
            raise ConfigError(f"fleet: expected 1 to 64 letters, digits, - and _, got {self.fleet!r}")

    @property
    def stream(self) -> str:
        """The log of all batches."""
        return f"KVEVENTS_{self.fleet}"

    @property
    def registry(self) -> str:
        """The KV bucket of workers."""
        return f"{self.stream}_workers"

    @property
    def snapshots(self) -> str:
        """The object store."""
        return f"{self.stream}_snapshots"

    @property
    def subjects(self) -> str:
        """Every worker's subject."""
        return f"kvevents.{self.fleet}.>"

    def subject(self, worker: str, rank: int) -> str:
        """Where a worker's rank publishes."""
        return f"kvevents.{self.fleet}.{self.key(worker, rank)}"

    @staticmethod
    def key(worker: str, rank: int) -> str:
        """Its record in the registry."""
        return f"{to_token(worker)}.{rank}"

    @staticmethod
    def source(subject_or_key: str) -> tuple[str, int]:
        """The worker and rank whose subject or key this is.

        Raises:
            WireError: it is none of ours.
        """
        *_, token, rank = ("", *subject_or_key.split("."))
        if not rank.isdecimal():
            raise WireError(f"expected a subject that ends in <worker>.<rank>, got {subject_or_key!r}", 0)
        return from_token(token), int(rank)


class MessageId(NamedTuple):
    """Which message it is; the broker drops a second one with the same id for a while (`Nats-Msg-Id`).

    Attributes:
        incarnation: drawn anew by every publisher when it starts.
        sequence: of the batch, from 0.
        part: which part of the batch, from 0: the broker limits the size of a message.
        parts: how many there are.
    """

    incarnation: str
    sequence: int
    part: int = 0
    parts: int = 1

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.sequence}.{self.part}.{self.parts}"

    @classmethod
    def read(cls, text: str | None) -> "MessageId":
        """The id as it stands in a header.

        Raises:
            WireError: it is none of ours.
        """
        incarnation, *numbers = (text or "").split(".")
        if not incarnation or len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
            raise WireError(f"expected {MESSAGE_ID} <incarnation>.<sequence>.<part>.<parts>, got {text!r}", 0)
        sequence, part, parts = map(int, numbers)
        if part >= parts:
            raise WireError(f"expected a part below {parts}, got {part}", 0)
        return cls(incarnation, sequence, part, parts)
