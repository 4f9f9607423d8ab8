"""`kvevents replay`: a recorded file, played as the engine."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter, validators

from kvevents.cli.damage import note_damage
from kvevents.cli.key_files import publisher_keys
from kvevents.cli.options import Port, Rate
from kvevents.cli.output import Json, note, print_json
from kvevents.cli.pace import Pace, amount, told_to_end
from kvevents.errors import ConfigError
from kvevents.transport import CaptureReader, Replayer


def replay(
    file: Path,
    /,
    *,
    speed: str = "1",
    to: str = "tcp://127.0.0.1:*",
    replay_to: str = "tcp://127.0.0.1:*",
    host: str = "127.0.0.1",
    port: Port = 0,
    wait: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 1,
    loop: Annotated[bool, Parameter(negative=())] = False,
    once: Annotated[bool, Parameter(negative=())] = False,
    buffer_mib: Rate = 256.0,
    keys: Path | None = None,
    json: Json = False,
) -> None:
    """Play a recorded file as the engine that it was recorded from, its replay socket and /server_info included.

    Once it listens it prints one line of JSON: the `url` of the first worker, and all `workers`. It begins when
    somebody subscribes. After the last batch it goes on repeating batches on request, until Ctrl-C.

    Example: `kvevents replay captures --speed max`, then `kvevents tail` with the url

    Args:
        file: A file written by `kvevents record`, a folder of them, or a recorded stream (JSON lines, also in a tar
            archive: archive.tar.xz/name.jsonl).
        speed: How many times as fast as it was recorded, or max: as fast as subscribers take it.
        to: The live socket of the first worker, on this machine; each further rank and worker takes the next port.
        replay_to: The same of the replay socket.
        host: Address that the URLs listen on.
        port: Port of the first worker's URL; 0 takes a free one.
        wait: Subscriptions to wait for before it begins.
        loop: Begin anew at the end, after a clear.
        once: End after the last batch.
        buffer_mib: Batches that each rank can repeat, in MiB.
        keys: A publisher's file of `kvevents keys` that ends in .key_secret: only consumers in the folder clients
            beside it can read.
        json: Print how it went at the end as one more line of JSON.
    """
    reader = CaptureReader(file)
    with (
        Replayer(
            reader,
            to=to,
            replay_to=replay_to,
            host=host,
            port=port,
            speed=_speed(speed),
            buffer_bytes=int(buffer_mib * 2**20),
            keys=publisher_keys(keys),
        ) as replayer,
        told_to_end(replayer.stop),
    ):
        note_damage(reader)
        print_json({"url": replayer.workers[0].url, "workers": [worker._asdict() for worker in replayer.workers]})
        if wait:
            note(f"waiting for {wait} subscriptions")
        progress = _Progress(replayer)
        pace = Pace(progress.line)
        replayer.run(wait_for=wait, loop=loop, tick=pace.tick)
        pace.end()
        summary: dict[str, Any] = {"seconds": round(pace.seconds, 3), **msgspec.to_builtins(replayer.stats())}
        if json:
            print_json(summary)
        note(f"played {summary['batches']:,} batches with {summary['blocks']:,} blocks in {pace.seconds:.1f} s")
        if not once:
            replayer.serve()


class _Progress:
    """The line that says how far it is."""

    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer
        self._blocks = 0

    def line(self, since_s: float, seconds: float) -> str:
        stats = self._replayer.stats()
        rate = (stats.blocks - self._blocks) / since_s
        self._blocks = stats.blocks
        done = stats.batches - stats.rounds * stats.total_batches
        return (
            f"{seconds:.0f} s: {done:,} of {stats.total_batches:,} batches, at {stats.position_s:.1f} s as recorded, "
            f"{amount(stats.blocks)}blocks, {amount(rate)}blocks/s, {stats.subscriptions} subscriptions"
        )


def _speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise ConfigError(f"--speed: expected a number above 0, or max, got {text!r}")
    return speed
