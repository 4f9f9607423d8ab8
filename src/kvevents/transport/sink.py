"""Where a subscriber takes the batches: anything like an index."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from kvevents.errors import ConfigError, WireError
from kvevents.events import AllBlocksCleared
from kvevents.index import GroupSpec
from kvevents.transport.picture import FINE, Verdict
from kvevents.transport.source import Residency, Source
from kvevents.transport.state import Fault, Reason
from kvevents.wire import decode_batch

_CLEAR_TAG = b"AllBlocksCleared"
_HARMLESS_SKIP = "unknown-tag"

IMAGE_MAGIC = b"KVERANK\0"
"""What an image of `PrefixIndex.snapshot_worker` begins with."""


ApplyRun: TypeAlias = Callable[..., tuple[int, object | None, Iterable[int]]]


class EventSink(Protocol):
    """Takes batches, always from one thread at a time per subscriber. `PrefixIndex` is one.

    A sink may have four methods more, as the index has them: `add_worker`, which is called when a source is added
    whose block size, residency or groups are given; `set_state`, which is called whenever a source's state changes;
    `restore_worker`, which is given the images of a snapshot: without it only snapshots made of batches can be used;
    and `apply_run`, which is given batches that came together, in place of `apply` for each, and raises nothing.
    """

    def apply(self, worker: str, data: bytes, *, seq: int | None, dp_rank: int | None) -> object:
        """Takes one encoded batch; of one source they come in order, each once.

        `WireError` refuses a broken batch. What is returned may be a report as the index gives it: its
        `skipped` events, `dropped` blocks and `error` then count against the source, and `cleared` events for it.
        """

    def clear_worker(self, worker: str, /, dp_rank: int | None = None) -> object:
        """Drops what a rank of a worker holds; None: all of its ranks."""


def register(
    sink: EventSink, worker: str, *, block_size: int | None, residency: Residency, groups: Sequence[GroupSpec]
) -> None:
    """Tells a sink that takes it what is known of a worker beforehand, if anything is."""
    add_worker = getattr(sink, "add_worker", None)
    if add_worker is not None and (block_size is not None or residency != "counted" or groups):
        add_worker(worker, block_size=block_size, residency=residency, groups=dict(enumerate(groups)) or None)


def is_image(part: bytes | memoryview) -> bool:
    """Whether a part of a snapshot is an image of blocks, not a batch."""
    return bytes(part[: len(IMAGE_MAGIC)]) == IMAGE_MAGIC


def takes_images(sink: EventSink) -> bool:
    """Whether a sink can be given the images of a snapshot."""
    return getattr(sink, "restore_worker", None) is not None


def restore_part(sink: EventSink, source: Source, part: bytes | memoryview, sequence: int | None) -> object:
    """Hands one part of a snapshot to a sink that holds nothing of the source, or earlier parts of the same.

    Raises:
        ConfigError: an image, and the sink takes none.
        WireError: bytes that are neither a batch nor an image.
    """
    if not is_image(part):
        return sink.apply(source.worker_id, bytes(part), seq=None, dp_rank=source.dp_rank)
    restore_worker = getattr(sink, "restore_worker", None)
    if restore_worker is None:
        raise ConfigError(
            f"{type(sink).__name__} has no restore_worker: it can use a snapshot made of batches, not of images"
        )
    report: object = restore_worker(source.worker_id, part, seq=sequence, dp_rank=source.dp_rank)
    return report


def read_report(report: object, sequence: int | None, what: str | None = None) -> Fault | None:
    """What a batch's report says against the picture: an index that left something out is not complete."""
    problem = _problem(report)
    if problem is None:
        return None
    reason, detail = problem
    return Fault(reason, f"{what or f'batch {sequence}'}{detail}", mendable=False)


def _problem(report: object) -> tuple[Reason, str] | None:
    ignored: object = getattr(report, "ignored", None)
    if ignored is not None:
        return Reason.BATCH_IGNORED, f" was not applied: {ignored}"
    error: object = getattr(report, "error", None)
    if error is not None:
        return Reason.SETTING_CONTRADICTED, f": {error}"
    dropped: object = getattr(report, "dropped", 0)
    if isinstance(dropped, int) and dropped > 0:
        return Reason.BLOCKS_DROPPED, f": {dropped} blocks that waited for their parent or place were dropped"
    skipped: Any = getattr(report, "skipped", ())
    for event in skipped if isinstance(skipped, list | tuple) else ():
        if event.code != _HARMLESS_SKIP:
            detail = f": an event was skipped ({event.code} at byte {event.offset}: {event.reason})"
            return Reason.EVENT_SKIPPED, detail
    return None


def judge(report: object, sequence: int, payload: bytes) -> Verdict:
    """What became of a batch that the sink took."""
    cleared: object = getattr(report, "cleared", None)
    if not isinstance(cleared, int):  # a sink that does not say
        cleared = _CLEAR_TAG in payload and _clears(payload)
    fault = read_report(report, sequence)
    return Verdict(fault, bool(cleared)) if cleared or fault else FINE


def _clears(payload: bytes) -> bool:
    try:
        return any(isinstance(event, AllBlocksCleared) for event in decode_batch(payload, strict=False).events)
    except WireError:
        return False  # for sinks that take anything
