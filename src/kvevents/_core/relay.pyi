"""`kvevents._core.relay`: see `kvevents.transport.relay`."""

from typing import Literal, TypeAlias, final

from _typeshed import ReadableBuffer

__all__ = ["CompactedLog", "Remains"]

# Public as kvevents.wire.Dialect; stubs import no higher layer.
_Dialect: TypeAlias = Literal["sglang", "sglang-array", "vllm", "vllm-array"]

@final
class CompactedLog:
    """The batches of one rank, without what undoes itself.

    Whoever applies what is left, holding nothing, holds what they would hold after all batches: those that keep sets,
    that count copies (up to 16), and that drop stores whose parent they do not hold. What is left is bounded by what
    is held. Thread-safe.
    """

    def __new__(cls) -> CompactedLog: ...
    def add(self, data: ReadableBuffer, /) -> None:
        """Add a batch.

        A clear empties the log. Events that cannot be read are left out and counted.

        Raises:
            WireError: it is no batch. Nothing was added.
        """

    def compact(self) -> None:
        """Leave out what nobody needs any more.

        Takes time in proportion to all that is there, without the GIL.
        """

    def batches(self, *, dialect: _Dialect = "sglang", max_bytes: int = 1_048_576) -> list[bytes]:
        """What is left, as batches of about `max_bytes`.

        A single event may be larger. The first batch begins with a clear; there is one even if nothing is held.

        Args:
            dialect: how events are written. One for which its arrays have no place is written as a map.
            max_bytes: where a batch ends.

        Raises:
            ConfigError: the dialect is none.
        """

    def remains(self) -> Remains:
        """The blocks that are held, for when something after them is lost."""

    def copy(self) -> CompactedLog:
        """A log with the same batches."""

    @property
    def size_bytes(self) -> int:
        """Bytes of what is there, within a few an event."""

    @property
    def compacted_bytes(self) -> int:
        """The same right after the last compaction."""

    @property
    def unread_events(self) -> int:
        """Events that could not be read and were left out."""

    def __len__(self) -> int: ...

@final
class Remains:
    """What a rank held before something of its stream was lost.

    Which of the blocks are held still, nobody knows; but an engine that stores a block below another holds that one,
    and with it all above, in the same tier. Thread-safe. Its length is how many blocks may be held still.
    """

    def confirm(self, data: ReadableBuffer, /) -> tuple[bytes, int] | None:
        """Read the next batch of the stream.

        Returns:
            A batch of stores of blocks that it shows to be held, to be said before it, and how many they are. Each
            block is given back once; None if there is none.

        Raises:
            WireError: it is no batch.
        """

    def __len__(self) -> int: ...
