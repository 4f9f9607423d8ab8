"""Records of any number of sources, checked one after the other."""

from kvevents.errors import ConfigError
from kvevents.lint.report import Finding, LintReport
from kvevents.lint.stream import Clues, Stream
from kvevents.transport.capture import (
    CapturedBatch,
    CapturedRefusal,
    CapturedReset,
    CaptureRecord,
    CaptureSource,
)


class StreamLinter:
    """Checks streams against what their consumers may rely on. One thread.

    Args:
        capacity_blocks: blocks that each engine's GPU cache can hold, to find removals that are lost.
        seeds: values of PYTHONHASHSEED to be tried before the usual ones.
        salts: salts that are not on the wire (vLLM before 0.17).
        has_hashes: whether hashes and tokens are the engines' own, not pseudonyms.

    Raises:
        ConfigError: `capacity_blocks` is below 1.
    """

    def __init__(
        self,
        *,
        capacity_blocks: int | None = None,
        seeds: tuple[str, ...] = (),
        salts: tuple[str, ...] = (),
        has_hashes: bool = True,
    ) -> None:
        if capacity_blocks is not None and capacity_blocks < 1:
            raise ConfigError(f"capacity_blocks: expected at least 1, got {capacity_blocks}")
        self._clues = Clues(capacity_blocks, seeds, salts, has_hashes)
        self._streams: dict[tuple[str, int | None], Stream] = {}

    def feed(self, record: CaptureRecord) -> None:
        """Check the next record; those of one source come in their order."""
        stream = self._stream(record.source)
        if isinstance(record, CapturedBatch):
            stream.batch(record)
        elif isinstance(record, CapturedReset):
            stream.reset()
        elif isinstance(record, CapturedRefusal):
            stream.refusal(record)
        else:
            stream.state(record)

    def report(self) -> LintReport:
        """Everything so far; more can follow."""
        streams = []
        findings: list[Finding] = []
        for stream in self._streams.values():
            facts, found = stream.report()
            streams.append(facts)
            findings += found
        findings.sort(key=lambda one: (-one.severity.rank, one.code, one.worker, one.dp_rank or 0))
        return LintReport(findings, streams)

    def _stream(self, source: CaptureSource) -> Stream:
        key = source.worker_id, source.dp_rank
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Stream(source, self._clues)
        return stream
