"""`kvevents record`: what engines publish, written to files."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from kvevents.cli.key_files import consumer_keys
from kvevents.cli.options import Count, Rate
from kvevents.cli.output import Json, note, print_json
from kvevents.cli.pace import Pace, amount, told_to_end
from kvevents.cli.sources import sources_of
from kvevents.errors import TransportError
from kvevents.transport import CaptureWriter, Recorder, SourceState, State

_LOOK_S = 0.1


def record(
    *urls: str,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    replay: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    topic: str = "",
    bind: Annotated[bool, Parameter(negative=())] = False,
    dp_size: Count = 1,
    keys: Path | None = None,
    keep_hashes: Annotated[bool, Parameter(negative=())] = False,
    tokens: Annotated[bool, Parameter(negative=())] = False,
    raw: Annotated[bool, Parameter(negative=())] = False,
    rotate_mib: Rate = 256.0,
    rotate_minutes: Rate = 60.0,
    duration: Rate | None = None,
    json: Json = False,
) -> None:
    """Write the KV cache events of workers to files, as they come, until Ctrl-C.

    Block hashes, token ids, salts, sessions, adapters and extra keys are replaced by pseudonyms that hold for one
    recording, so that the files can leave the machine; names of workers, topics and times stay. What was missed before
    the start is fetched where a worker can repeat it. `kvevents replay` plays the files.

    Example: `kvevents record http://127.0.0.1:30000 -o captures`

    Example: `kvevents record worker-1=http://10.0.0.5:30000 worker-2=http://10.0.0.6:30000 -o captures`

    Example: `kvevents record tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558 --topic kv-events -o captures`

    Args:
        urls: Base URLs of workers, whose server info names their sockets, or ZMQ sockets themselves (tcp:// or ipc://).
            NAME=URL gives a worker a name for the files; by default its address is its name.
        output: Folder for the files; made if it is not there. Nothing in it is overwritten.
        replay: The ZMQ socket that repeats batches; once for each ZMQ socket among the URLs, in their order.
        topic: Of ZMQ sockets: only topics that begin with this.
        bind: Bind the ZMQ sockets, for publishers that connect.
        dp_size: Of ZMQ sockets: data-parallel ranks, each on the port after the one before.
        keys: A file of `kvevents keys` that ends in .key_secret, of a consumer that the publishers list.
        keep_hashes: Block hashes stay as they are. Without a salt they can be computed from a prompt by anyone.
        tokens: Token ids stay as they are: whoever has the file can read the prompts.
        raw: Everything stays as it is.
        rotate_mib: Begin the next file when one has so many MiB.
        rotate_minutes: The same by its age.
        duration: Seconds after which to stop.
        json: Print what was recorded as one JSON object.
    """
    sources = sources_of(urls, replay=replay, topic=topic, bind=bind, dp_size=dp_size, keys=consumer_keys(keys))
    writer = CaptureWriter(
        output,
        keep_hashes=keep_hashes,
        keep_tokens=tokens,
        raw=raw,
        rotate_bytes=int(rotate_mib * 2**20),
        rotate_s=rotate_minutes * 60,
    )
    with writer, told_to_end() as ended, Recorder(sources, writer) as recorder:
        note(f"recording {len(sources)} sources to {writer.path}; Ctrl-C ends")
        if raw or tokens:
            note("token ids stay as they are: whoever has the files can read the prompts")
        progress = _Progress(writer, recorder)
        pace = Pace(progress.line)
        while not ended.wait(_LOOK_S) and (duration is None or pace.seconds < duration):
            recorder.check()
            pace.tick()
        pace.end()
        states = recorder.states()
    summary = _summary(writer, states, pace.seconds)
    if json:
        print_json(summary)
    else:
        _print(summary)
    if all(state.state is State.CONNECTING for state in states.values()):
        raise TransportError(f"nothing was reached: {next(iter(states.values())).reason}")


class _Progress:
    """The line that says how far it is."""

    def __init__(self, writer: CaptureWriter, recorder: Recorder) -> None:
        self._writer = writer
        self._recorder = recorder
        self._blocks = 0

    def line(self, since_s: float, seconds: float) -> str:
        stats = self._writer.stats()
        rate = (stats.blocks - self._blocks) / since_s
        self._blocks = stats.blocks
        states = Counter(state.state for state in self._recorder.states().values())
        return (
            f"{seconds:.0f} s: {stats.batches:,} batches, {amount(stats.blocks)}blocks, {amount(rate)}blocks/s, "
            f"{amount(stats.file_bytes)}B in {stats.files} files, " + ", ".join(f"{n} {s}" for s, n in states.items())
        )


def _summary(
    writer: CaptureWriter, states: Mapping[tuple[str, int | None], SourceState], seconds: float
) -> dict[str, Any]:
    sources = [
        {
            "worker": worker,
            "dp_rank": rank,
            "state": state.state,
            "reason": state.reason,
            "last_sequence": state.last_sequence,
            "counters": state.counters,
        }
        for (worker, rank), state in states.items()
    ]
    files = [str(file) for file in writer.files]
    stats: dict[str, Any] = msgspec.to_builtins(writer.stats())
    return {**stats, "seconds": round(seconds, 3), "files": files, "sources": sources}


def _print(summary: dict[str, Any]) -> None:
    for source in summary["sources"]:
        name = source["worker"] if source["dp_rank"] is None else f"{source['worker']}/{source['dp_rank']}"
        missing = source["counters"].missing
        lost = f", {missing:,} missing" if missing else ""
        print(f"{name}: {source['counters'].applied:,} batches{lost}; {source['state']} at the end: {source['reason']}")
    print(
        f"{summary['batches']:,} batches with {summary['blocks']:,} blocks in {summary['seconds']:.1f} s;"
        f" {summary['file_bytes']:,} bytes in {', '.join(summary['files'])}"
    )
