"""`kvevents._core.index`: see `kvevents.index`, which gives the answers their classes."""

from collections.abc import Sequence
from typing import Any, TypeAlias, final

from _typeshed import ReadableBuffer

from kvevents.errors import ConfigError
from kvevents.events import SkippedEvent

_Tokens: TypeAlias = Sequence[int] | ReadableBuffer
_Row: TypeAlias = tuple[str, int | None, int, tuple[int, int, int, int], tuple[int, int, int, int], int, str]
_Prompt: TypeAlias = tuple[_Tokens, str | None, int | None, str | None, bytes | None]

@final
class WorkerHandle:
    """Stands for a worker as it was added to one index; dead once the worker is removed."""

    @property
    def id(self) -> str:
        """The worker's id."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class ApplyReport:
    """What became of a batch. Counts are in blocks unless they say otherwise."""

    @property
    def dp_rank(self) -> int | None:
        """The rank it was applied to: the one in the batch, else the argument."""

    @property
    def events(self) -> int:
        """Events applied."""

    @property
    def stored(self) -> int:
        """Blocks that its stores named."""

    @property
    def removed(self) -> int:
        """Blocks (copies) that its removals took away."""

    @property
    def cleared(self) -> int:
        """Clears among the events."""

    @property
    def pending(self) -> int:
        """Blocks of this worker and rank that wait for their parent after the batch."""

    @property
    def parked(self) -> int:
        """Held blocks of this worker and rank without a place after the batch: known by hash only."""

    @property
    def unaligned(self) -> int:
        """Those of the parked blocks that came by stores with more (or fewer) tokens than their blocks cover."""

    @property
    def partial(self) -> int:
        """Partial pages that its stores named: shorter than the engine's blocks, held by hash, in no match."""

    @property
    def removal_misses(self) -> int:
        """Blocks that its removals named and that were not held there."""

    @property
    def dropped(self) -> int:
        """Pending and parked blocks dropped: too many, too large or too old. The picture is incomplete."""

    @property
    def skipped(self) -> list[SkippedEvent]:
        """Left out: unreadable events, `unknown-tier`, `bad-block-size`, `extra-keys-too-large`, `too-many-groups`."""

    @property
    def error(self) -> ConfigError | None:
        """A block size that contradicts the registered or learned one; the events with it were not applied."""

    @property
    def ignored(self) -> str | None:
        """Why nothing of it was applied: `worker-removed` or `duplicate` (its sequence was applied before)."""

@final
class Found:
    """What each rank of each worker holds of a prompt."""

    def __new__(cls, rows: list[tuple[str, int | None, int, tuple[int, ...], str]], /) -> Found:
        """What an index of another kind has told: worker, rank, usable blocks, those by fastest tier, state."""
    def __len__(self) -> int: ...

@final
class PrefixIndex:
    def __new__(
        cls,
        block_size: int,
        *,
        keep_tokens: bool,
        max_pending_blocks: int,
        max_pending_bytes: int,
        max_pending_age_s: float,
        max_parked_blocks: int,
        max_parked_bytes: int,
        max_parked_age_s: float,
        max_sources: int,
    ) -> PrefixIndex: ...
    @property
    def block_size(self) -> int: ...
    def add_worker(
        self, worker: str, *, block_size: int | None, counted: bool, groups: list[tuple[int, str, int | None]] | None
    ) -> WorkerHandle: ...
    def remove_worker(self, worker: str) -> bool: ...
    def clear_worker(self, worker: str, dp_rank: int | None = None) -> None: ...
    def set_state(self, worker_id: str, dp_rank: int | None, state: str) -> bool: ...
    def apply(
        self,
        worker: WorkerHandle | str,
        data: ReadableBuffer,
        *,
        seq: int | None = None,
        dp_rank: int | None = None,
    ) -> ApplyReport: ...
    def apply_run(
        self, worker: WorkerHandle | str, batches: Sequence[tuple[int, bytes]], *, dp_rank: int | None = None
    ) -> tuple[int, ApplyReport | None, list[int]]:
        """Apply batches of one source in order, up to the first about which there is something to say."""
    def match(
        self,
        tokens: _Tokens,
        lora_name: str | None,
        lora_id: int | None,
        cache_salt: str | None,
        extra_keys: bytes | None,
    ) -> list[_Row]: ...
    def find(
        self,
        tokens: _Tokens,
        lora_name: str | None,
        lora_id: int | None,
        cache_salt: str | None,
        extra_keys: bytes | None,
    ) -> Found:
        """What `match` tells, without Python values for it."""
    def match_many(self, prompts: list[_Prompt]) -> list[list[_Row]]: ...
    def trail(
        self,
        tokens: _Tokens,
        lora_name: str | None,
        lora_id: int | None,
        cache_salt: str | None,
        extra_keys: bytes | None,
    ) -> bytes:
        """Content hashes, 8 bytes each, little-endian: of the deepest known block, of one half as deep, and so on."""
    def explore(
        self, at: int | None, depth: int, limit: int, holders: int, trails: Sequence[bytes]
    ) -> dict[str, Any] | None:
        """Figures under the names of `kvevents.index.View`; None where there is nothing at the place asked for."""
    def holdings(self, worker_id: str) -> dict[int | None, dict[str, set[int]]]: ...
    def dump_events(self, worker: str) -> list[tuple[int | None, list[tuple[bool, dict[str, Any]]]]]: ...
    def stats(self) -> dict[str, Any]: ...
    def snapshot(self) -> bytes: ...
    def restore(self, data: ReadableBuffer) -> None: ...
    def snapshot_worker(self, worker: str, dp_rank: int | None = None) -> list[bytes] | None: ...
    def restore_worker(
        self, worker: str, data: ReadableBuffer, *, seq: int | None = None, dp_rank: int | None = None
    ) -> ApplyReport: ...
    def faults(self) -> list[str]: ...
