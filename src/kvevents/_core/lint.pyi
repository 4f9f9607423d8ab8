"""`kvevents._core.lint`: see `kvevents.lint`."""

from typing import final

from _typeshed import ReadableBuffer

__all__ = ["Finding", "Linted", "Linter"]

@final
class Linter:
    """Reads the batches of one source in their order, and says what does not hold in them.

    Thread-safe.

    Args:
        block_size: tokens in a block on the GPU, as the engine says; None where it does not.
        is_whole: whether the first batch is the engine's first, so that nothing was announced before it.
        remembered_blocks: how many blocks are remembered, some 20 bytes each.

    Raises:
        ConfigError: `block_size` is below 1.
    """

    def __new__(
        cls, *, block_size: int | None = None, is_whole: bool = True, remembered_blocks: int = 8_388_608
    ) -> Linter: ...
    def check(self, data: ReadableBuffer, /) -> Linted:
        """Check the next batch, in whatever dialect.

        Raises:
            WireError: it is no batch.
        """

    def begin(self) -> None:
        """The engine began anew: nothing is held, and what is known from here on is all there is."""

    def miss(self) -> None:
        """Batches are missing here: what is not known from here on may have been in them."""

    @property
    def held(self) -> int:
        """Blocks held on the GPU, over the fullest group of each rank."""

    @property
    def ranks(self) -> int:
        """Ranks that the batches named so far; those that name none are one."""

    @property
    def forgotten(self) -> int:
        """Blocks that there was no room to remember; from the first on, nothing is called unknown."""

@final
class Linted:
    """What a batch holds, and what was found in it.

    Attributes:
        ts: the publisher's clock, unix seconds.
        dp_rank: the rank that the batch names.
        events: its events, unusable ones included.
        stored: blocks in its stores.
        removed: blocks in its removals.
        findings: one for each kind.
    """

    @property
    def ts(self) -> float: ...
    @property
    def dp_rank(self) -> int | None: ...
    @property
    def events(self) -> int: ...
    @property
    def stored(self) -> int: ...
    @property
    def removed(self) -> int: ...
    @property
    def findings(self) -> list[Finding]: ...

@final
class Finding:
    """All of one kind in one batch.

    Attributes:
        kind: the stable name of what does not hold.
        offset: where the first event with it begins in the payload.
        events: events with it.
        blocks: blocks (or values, for fields) that are concerned.
        block: one of those blocks.
        detail: what was expected and what came, in the first event.
    """

    @property
    def kind(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def events(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def block(self) -> int | None: ...
    @property
    def detail(self) -> str | None: ...
