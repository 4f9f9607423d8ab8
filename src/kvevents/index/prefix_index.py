"""The index itself."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from kvevents._core import index as core
from kvevents._core.index import ApplyReport, WorkerHandle
from kvevents.errors import ConfigError
from kvevents.events import BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.index.answers import IndexStats, Matches
from kvevents.index.view import View
from kvevents.wire import encode_batch

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Tokens: TypeAlias = "Sequence[int] | ReadableBuffer"
"""Token ids: a list, an array, a numpy integer array or any integer buffer (read without a copy where contiguous)."""

_UNSIGNED = 1 << 64

ExtraKeys: TypeAlias = Sequence[Sequence[Any] | None]
"""What identifies blocks besides their tokens, an entry for each block of the index's size: None, or a list of
`[image id, offset of the image from the block's start]` in order, then the digest of prompt embeddings, as on vLLM's
wire but without adapter and salt."""


class GroupSpec(msgspec.Struct, frozen=True):
    """A KV cache group of a hybrid model, for engines that announce groups without saying their kind.

    Attributes:
        kind: `full_attention`, `sliding_window`, `mamba`; any other counts for nothing.
        window: of a sliding window, in tokens.
    """

    kind: str
    window: int | None = None


class Prompt(msgspec.Struct, frozen=True):
    """A prompt with its namespace, for `PrefixIndex.match_many`; the fields are the arguments of `match`."""

    tokens: Any
    lora_name: str | None = None
    lora_id: int | None = None
    cache_salt: str | None = None
    extra_keys: ExtraKeys | None = None


class PrefixIndex:
    """Which worker holds how much of a prompt, rebuilt from KV cache events. Thread-safe.

    Any number of threads may read and write at once. Readers see each event whole. The batches of one source (a rank
    of a worker) must come in order.

    Args:
        block_size: tokens in a block of the answers; engines may cut differently, and pairs (EAGLE) are understood.
        keep_tokens: keep the tokens, adapters and salts of blocks, so that `dump_events` can rebuild them.
        max_pending_blocks: blocks of a source that may wait for their parent; the oldest are dropped, and of an event
            that alone is too large the last.
        max_pending_bytes: memory that they may take, with what is kept to place them.
        max_pending_age_s: how long a block may wait for its parent, in seconds.
        max_parked_blocks: held blocks of a source that may be without a place; the oldest are dropped, and of an event
            that alone is too large the last.
        max_parked_bytes: memory that they may take.
        max_parked_age_s: how long a block may be without a place, in seconds.
        max_sources: workers times ranks.

    Raises:
        ConfigError: a setting out of its range.
    """

    def __init__(
        self,
        block_size: int,
        *,
        keep_tokens: bool = False,
        max_pending_blocks: int = 65_536,
        max_pending_bytes: int = 1 << 27,
        max_pending_age_s: float = 300.0,
        max_parked_blocks: int = 262_144,
        max_parked_bytes: int = 1 << 27,
        max_parked_age_s: float = 3600.0,
        max_sources: int = 4096,
    ) -> None:
        self._core = core.PrefixIndex(
            block_size,
            keep_tokens=keep_tokens,
            max_pending_blocks=max_pending_blocks,
            max_pending_bytes=max_pending_bytes,
            max_pending_age_s=max_pending_age_s,
            max_parked_blocks=max_parked_blocks,
            max_parked_bytes=max_parked_bytes,
            max_parked_age_s=max_parked_age_s,
            max_sources=max_sources,
        )

    @property
    def block_size(self) -> int:
        """Tokens in a block of the answers."""
        return self._core.block_size

    def add_worker(
        self,
        id: str,  # noqa: A002 - the name is contract
        *,
        block_size: int | None = None,
        residency: Literal["counted", "set"] = "counted",
        groups: Mapping[int, GroupSpec] | None = None,
    ) -> WorkerHandle:
        """Add a worker, or get the handle of one that is there.

        Args:
            id: the worker's id.
            block_size: its engine's block size (page size); None learns it from the first stores. Events that
                contradict it are not applied and reported loudly. A single shorter block is a page that is not full:
                held by its hash, counted as `partial`, in no match.
            residency: `counted`: each copy on the GPU is counted, as engines announce it; `set`: one removal takes
                all, for vLLM with `kv_cache_report_mode=full`, which repeats stores that were never new.
            groups: the KV cache groups of its model by `group_idx`, where the events do not say their kind; at most 32.

        Raises:
            ConfigError: a setting out of its range, or other settings than before for a worker that holds blocks.
            CapacityError: one worker more than `max_sources`.
        """
        if residency not in ("counted", "set"):
            raise ConfigError(f"residency: expected counted or set, got {residency!r}")
        specs = None if groups is None else _checked(groups)
        return self._core.add_worker(id, block_size=block_size, counted=residency == "counted", groups=specs)

    def remove_worker(self, id: str) -> bool:  # noqa: A002 - the name is contract
        """Remove a worker with all its ranks, those seen only in batches too.

        Its handles are dead: what they bring is ignored and counted. Its id comes back only through `add_worker`.

        Returns:
            Whether it was there.
        """
        return self._core.remove_worker(id)

    def clear_worker(self, id: str, dp_rank: int | None = None) -> None:  # noqa: A002 - the name is contract
        """Forget what a worker holds, its learned block size and last sequence; of all ranks if `dp_rank` is None."""
        self._core.clear_worker(id, dp_rank)

    def set_state(self, worker_id: str, dp_rank: int | None, state: str) -> bool:
        """Set the state that matches report for a rank; None sets it for all ranks.

        Returns:
            Whether the worker is there: it is added on first sight, but not if it was removed.
        """
        return self._core.set_state(worker_id, dp_rank, state)

    def apply(
        self,
        worker: "WorkerHandle | str",
        data: "ReadableBuffer | KVEventBatch",
        *,
        seq: int | None = None,
        dp_rank: int | None = None,
    ) -> ApplyReport:
        """Apply a batch of events.

        Args:
            worker: a handle, or an id, which is added on first sight with the defaults of `add_worker`.
            data: the payload as it came, in any dialect, or a batch.
            seq: its sequence. One that is not above the last one of its rank is a duplicate and ignored, until
                `clear_worker`.
            dp_rank: the rank, for engines that do not say it; the rank in the batch beats it. None is not rank 0.

        Raises:
            WireError: broken bytes; nothing was applied.
            CapacityError: a source more than `max_sources`; nothing was applied.
            ConfigError: a handle of another index.
        """
        if isinstance(data, KVEventBatch):
            data = encode_batch(data)
        return self._core.apply(worker, data, seq=seq, dp_rank=dp_rank)

    def apply_run(
        self, worker: "WorkerHandle | str", batches: Sequence[tuple[int, bytes]], *, dp_rank: int | None = None
    ) -> tuple[int, ApplyReport | None, list[int]]:
        """Apply batches of one source in order, as `apply` each, up to the first about which there is something to say.

        That is one that clears, or of which something was skipped, dropped, contradicted or ignored; it is the last
        that is applied. One that `apply` would refuse is not applied and ends the run: `apply` says why.

        Args:
            worker: as for `apply`.
            batches: (sequence, payload) of each.
            dp_rank: as for `apply`.

        Returns:
            How many were applied; the report of the last of them if there is something to say about it, else None; the
            ranks that they were applied to, each once.
        """
        return self._core.apply_run(worker, batches, dp_rank=dp_rank)

    def match(
        self,
        tokens: Tokens,
        *,
        lora_name: str | None = None,
        lora_id: int | None = None,
        cache_salt: str | None = None,
        extra_keys: ExtraKeys | None = None,
    ) -> Matches:
        """How much of a prompt each rank of each worker holds: those that hold at least its first block, best first.

        Args:
            tokens: the prompt's token ids.
            lora_name: the adapter's name.
            lora_id: the adapter's number, for engines that announce no name; counts only without `lora_name`.
            cache_salt: the tenant's salt.
            extra_keys: images and embeddings of its blocks. For an engine whose block is not a multiple of the
                index's, nothing is known from the first block with an entry on.

        Raises:
            ValueError: a token id below 0 or over 2^64-1.
            TypeError: tokens that are no integers.
        """
        extra = _packed(extra_keys)
        return Matches(self._core.match(tokens, lora_name, lora_id, cache_salt, extra))

    def find(
        self, tokens: Tokens, lora_name: str | None, lora_id: int | None, cache_salt: str | None, extra_keys: Any
    ) -> core.Found:
        """What `match` tells, for a router, which makes no Python values of it; the arguments are the same."""
        return self._core.find(tokens, lora_name, lora_id, cache_salt, _packed(extra_keys))

    def match_many(self, prompts: "Iterable[Prompt | Tokens]") -> list[Matches]:
        """`match` for each of several prompts, given as tokens or (with a namespace) as `Prompt`."""
        if not isinstance(prompts, Iterable):
            raise TypeError(f"prompts: expected several prompts, got {type(prompts)}")
        return [Matches(rows) for rows in self._core.match_many([_prompt(prompt) for prompt in prompts])]

    def trail(
        self,
        tokens: Tokens,
        *,
        lora_name: str | None = None,
        lora_id: int | None = None,
        cache_salt: str | None = None,
        extra_keys: ExtraKeys | None = None,
    ) -> bytes:
        """The trail of a prompt through what anyone holds, for `explore` to count; empty where nobody holds any of it.

        The arguments are those of `match`. It names the deepest block that is known, one half as deep, and so on, so
        that it still leads somewhere when the deepest blocks are gone; 160 bytes for the longest prompts.
        """
        return self._core.trail(tokens, lora_name, lora_id, cache_salt, _packed(extra_keys))

    def explore(
        self,
        at: int | None = None,
        *,
        depth: int = 4,
        limit: int = 200,
        holders: int = 64,
        trails: Sequence[bytes] = (),
    ) -> View | None:
        """Look around in the tree of all prompts: what is shared, by how many blocks, and who holds it.

        Takes time in the number of blocks held (some 20 ms for a million) without holding up readers or writers; what
        changes meanwhile may be seen half.

        Args:
            at: `content` of a stretch to look down from; None: from above all first blocks.
            depth: levels of stretches to tell.
            limit: stretches to tell at most: those with most hits, then with most blocks.
            holders: holders to tell of each stretch at most.
            trails: of prompts, made by `trail`: how many of them lead through a stretch is its `hits`.

        Returns:
            What is there; None where there is nothing (any more) at `at`.
        """
        for name, value in (("depth", depth), ("limit", limit), ("holders", holders)):
            if value < 0:
                raise ConfigError(f"{name}: expected 0 or more, got {value}")
        found = self._core.explore(at, depth, limit, holders, trails)
        return None if found is None else msgspec.convert(found, View)

    def holdings(self, worker_id: str) -> dict[int | None, dict[str, set[int]]]:
        """Engine hashes (signed 64-bit) of the blocks a worker holds, by rank and tier; every tier is there.

        Placed or not; of a hybrid model those that its full-attention groups hold. Empty for an unknown worker.
        """
        return self._core.holdings(worker_id)

    def dump_events(self, worker: str) -> list[KVEventBatch]:
        """What a worker holds as the events that would build it, a batch for each rank.

        With `keep_tokens` another index that applies them gives the same answers. Without, the stores name hashes and
        parents but no tokens: the other index then has the same holdings, but its blocks are parked and count in
        matches only once events with tokens have bound the same hashes.

        Raises:
            CapacityError: some blocks are held in so many copies that telling each is out of proportion.
        """
        now = time.time()
        return [
            KVEventBatch(ts=now, events=[_event(is_store, fields) for is_store, fields in events], attn_dp_rank=rank)
            for rank, events in self._core.dump_events(worker)
        ]

    def stats(self) -> IndexStats:
        """Figures for people and metrics; cheap."""
        return msgspec.convert(self._core.stats(), IndexStats)

    def snapshot(self) -> bytes:
        """All that is held, consistent, with the last sequence of every source, as bytes for `restore`.

        Without tokens (but for blocks that still wait for their parent), salts, adapters or states.
        """
        return self._core.snapshot()

    def restore(self, data: "ReadableBuffer") -> None:
        """Replace what is held by a snapshot.

        Workers that are there stay, empty where the snapshot has nothing of them, and their handles live on; ids that
        were removed stay removed.

        Raises:
            WireError: bytes that are not a snapshot of this version, or damaged; the index is unchanged.
            CapacityError: more sources than `max_sources`; the index is unchanged.
        """
        self._core.restore(data)

    def snapshot_worker(self, worker: str, dp_rank: int | None = None) -> list[bytes]:
        """What a worker holds, in one rank or (None) in all, as an image for each rank, all of one moment.

        For `restore_worker` of another index: beside whatever else that one holds, and under any worker id. Without
        tokens (but for blocks that still wait for their parent), salts or adapters. Empty for an unknown worker.
        """
        return self._core.snapshot_worker(worker, dp_rank) or []

    def restore_worker(
        self,
        worker: str,
        data: "ReadableBuffer",
        *,
        seq: int | None = None,
        dp_rank: int | None = None,
    ) -> ApplyReport:
        """Let a rank of a worker hold what an image of `snapshot_worker` says, and nothing else.

        Matches that are asked for meanwhile see some of it; set the worker's state where that matters.

        Args:
            worker: its id, added on first sight with the defaults of `add_worker`.
            data: the image.
            seq: the last sequence that counts as applied; None: the one in the image.
            dp_rank: the rank, for images that do not say it; the rank in the image beats it.

        Returns:
            What became of it; `stored` are the blocks that are held or known now.

        Raises:
            WireError: bytes that are not an image of this version, or damaged; the index is unchanged.
            CapacityError: a source more than `max_sources`; the index is unchanged.
        """
        return self._core.restore_worker(worker, data, seq=seq, dp_rank=dp_rank)

    def check_integrity(self) -> None:
        """Check every invariant from scratch; for tests and doubts. Costs time in the number of blocks.

        Raises:
            AssertionError: with every fault found.
        """
        faults = self._core.faults()
        if faults:
            raise AssertionError("; ".join(faults))


def _prompt(prompt: Any) -> Any:
    if not isinstance(prompt, Prompt):
        return prompt, None, None, None, None
    return prompt.tokens, prompt.lora_name, prompt.lora_id, prompt.cache_salt, _packed(prompt.extra_keys)


def _packed(extra_keys: Any) -> bytes | None:
    if extra_keys is None:
        return None
    try:
        return msgspec.msgpack.encode(extra_keys)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"extra_keys: expected a list with None or a list for each block: {error}") from None


def _checked(groups: Any) -> list[tuple[int, str, int | None]]:
    """The groups in the form that the core takes."""
    if not isinstance(groups, Mapping):
        raise ConfigError(f"groups: expected a mapping of group_idx to GroupSpec, got {type(groups)}")
    for index, spec in groups.items():
        if not isinstance(index, int) or not 0 <= index < _UNSIGNED:
            raise ConfigError(f"groups: expected a group_idx from 0 to {_UNSIGNED - 1}, got {index!r}")
        if not isinstance(spec, GroupSpec) or not isinstance(spec.kind, str):
            raise ConfigError(f"groups[{index}]: expected a GroupSpec with the name of a kind, got {spec!r}")
        if spec.window is not None and not (isinstance(spec.window, int) and 0 < spec.window < _UNSIGNED):
            raise ConfigError(f"groups[{index}]: expected a window of at least 1 token, got {spec.window!r}")
    return [(index, spec.kind, spec.window) for index, spec in groups.items()]


def _event(is_store: bool, fields: dict[str, Any]) -> KVCacheEvent:
    if not is_store:
        return BlockRemoved(**fields)
    if extra_keys := fields.get("extra_keys"):
        fields["extra_keys"] = [msgspec.msgpack.decode(entry) if entry else None for entry in extra_keys]
    return BlockStored(**fields)
