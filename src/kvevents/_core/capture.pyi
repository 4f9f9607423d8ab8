"""`kvevents._core.capture`: see `kvevents.transport.capture`."""

from collections.abc import Sequence
from typing import final

from _typeshed import ReadableBuffer

__all__ = ["Pseudonyms", "Rewriter", "Rewritten", "measure"]

@final
class Pseudonyms:
    """Keyed pseudonyms: equal for equal values under one key, and without the key as good as random.

    Whoever has the key can tell which value a pseudonym stands for by trying values, so it is not to be kept with what
    was written under it. Thread-safe.

    Args:
        key: 32 random bytes.

    Raises:
        ConfigError: the key has another length.
    """

    def __new__(cls, key: bytes, /) -> Pseudonyms: ...
    def text(self, text: str, /) -> str:
        """What stands for a salt, a session, the name of an adapter, or a text among extra keys.

        16 hex digits; the empty text stays.
        """

    def number(self, number: int, /) -> int:
        """What stands for the number of an adapter."""

    def block(self, block: int, /) -> int:
        """What stands for a block's id, both as signed integers of 64 bits."""

    def prompt(
        self,
        tokens: Sequence[int] | ReadableBuffer,
        block_size: int,
        *,
        lora_name: str | None = None,
        lora_id: int | None = None,
        cache_salt: str | None = None,
    ) -> memoryview:
        """What stands for the tokens of a prompt, int64.

        An index that was fed with rewritten batches answers for it what one fed with the originals answers for the
        prompt itself, if adapter and salt are asked for under their pseudonyms too.

        Args:
            tokens: the prompt.
            block_size: that of the engine.
            lora_name: its adapter, by name.
            lora_id: its adapter, by number.
            cache_salt: its salt.
        """

@final
class Rewriter:
    """Rewrites the batches of one source under pseudonyms, bytes to bytes.

    A batch keeps its dialect, its events with their fields in their order, and which blocks are equal. What a consumer
    of the originals would hold and match, one of the rewritten batches holds and matches under the new names.
    Thread-safe; batches have to come in their order, for a block's pseudonym depends on what is above it.

    Args:
        pseudonyms: the names.
        keep_hashes: block hashes stay.
        keep_tokens: token ids stay.
        remembered_blocks: how many blocks' contents are remembered, 17 to 30 bytes each. What continues a block that
            was forgotten, or never announced, gets tokens of its own: equal within the source, not across sources.
    """

    def __new__(
        cls,
        pseudonyms: Pseudonyms,
        /,
        *,
        keep_hashes: bool = False,
        keep_tokens: bool = False,
        remembered_blocks: int = 3_670_016,
    ) -> Rewriter: ...
    def rewrite(self, data: ReadableBuffer, /) -> Rewritten:
        """Rewrite the next batch, in whatever dialect; it keeps its own.

        Raises:
            WireError: it is no batch, so that nothing of it can be told apart.
        """

@final
class Rewritten:
    """A batch under new names.

    Attributes:
        payload: the batch.
        events: its events, those included that were not read.
        blocks: block hashes in them.
        cleared: clears among the events.
        emptied_events: events of unknown types, or that cannot be used: their shape is left, and nothing in it.
        dropped_fields: fields and elements of unknown meaning that are gone.
    """

    @property
    def payload(self) -> bytes: ...
    @property
    def events(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def cleared(self) -> int: ...
    @property
    def emptied_events(self) -> int: ...
    @property
    def dropped_fields(self) -> int: ...

def measure(data: ReadableBuffer, /) -> tuple[int, int, int]:
    """How many events a batch has, how many block hashes they name, and how many of them are clears.

    Raises:
        WireError: it is no batch.
    """
