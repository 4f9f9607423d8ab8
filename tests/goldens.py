"""The recorded streams under `tests/data/golden`, unpacked in memory."""

import functools
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

ARCHIVES = Path(__file__).parent / "data" / "golden"


class Script(NamedTuple):
    """One recorded SGLang script: the header and the steps after it."""

    name: str
    header: dict[str, Any]
    steps: list[dict[str, Any]]


@functools.cache
def archive(name: str) -> dict[str, bytes]:
    """All files of `<name>.tar.xz`, by file name without folder."""
    with tarfile.open(ARCHIVES / f"{name}.tar.xz") as tar:
        members = [member for member in tar if member.isfile()]
        return {Path(member.name).name: (tar.extractfile(member) or _missing(member)).read() for member in members}


def _missing(member: tarfile.TarInfo) -> Any:
    raise FileNotFoundError(member.name)


def json_lines(data: bytes) -> list[dict[str, Any]]:
    """Every line of a JSON lines file."""
    return [msgspec.json.decode(line) for line in data.splitlines() if line.strip()]


@functools.cache
def script_sources(folder: Path | None) -> dict[str, bytes]:
    """SGLang scripts by file name: those of `folder`, or the ones in the repository."""
    if folder is not None:
        return {path.name: path.read_bytes() for path in sorted(folder.glob("*.jsonl"))}
    return {name: data for name, data in sorted(archive("sglang").items()) if name.endswith(".jsonl")}


@functools.cache
def script(name: str, folder: Path | None) -> Script:
    """One script, parsed."""
    header, *steps = json_lines(script_sources(folder)[name])
    return Script(name, header, steps)


@functools.cache
def capture(name: str) -> list[dict[str, Any]]:
    """One vLLM capture, line by line."""
    return json_lines(archive("vllm")[name])


def capture_names() -> list[str]:
    """Names of all vLLM captures."""
    return sorted(name for name in archive("vllm") if name.endswith(".jsonl"))


def published_frames(name: str) -> list[list[bytes]]:
    """The live frames `[topic, sequence, payload]` of a vLLM capture, in order."""
    return [[bytes.fromhex(frame) for frame in line["frames"]] for line in capture(name) if line.get("dir") == "pub"]


def trace_lines(name: str) -> Iterator[dict[str, Any]]:
    """One of the long vLLM runs in `vllm_trace`, line by line as it is unpacked."""
    with tarfile.open(ARCHIVES / "vllm_trace.tar.xz", mode="r|xz") as tar:
        for member in tar:
            if Path(member.name).name == f"{name}.jsonl":
                yield from map(msgspec.json.decode, tar.extractfile(member) or _missing(member))
                return
    raise FileNotFoundError(name)
