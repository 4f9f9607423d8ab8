"""Finds the files of a capture and opens each, whatever it is packed in."""

import contextlib
import lzma
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from kvevents.errors import ConfigError, TransportError
from kvevents.transport.capture.layout import MAGIC, SUFFIX


class CaptureFile(NamedTuple):
    """One file of a capture.

    Attributes:
        path: where it is.
        member: which file in it, if it is an archive.
    """

    path: Path
    member: str | None = None

    def __str__(self) -> str:
        return f"{self.path}" if self.member is None else f"{self.path}/{self.member}"

    @property
    def name(self) -> str:
        """Its name without folder and suffixes."""
        return Path(self.member or self.path.name).name.removesuffix(".xz").removesuffix(".jsonl").removesuffix(".json")

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[bool, IO[bytes]]]:
        """Opens it; whether it is a capture of ours, and its bytes.

        Raises:
            TransportError: it cannot be read.
        """
        try:
            with contextlib.ExitStack() as stack:
                file: IO[bytes] = stack.enter_context(self.path.open("rb"))
                if self.member is not None:
                    archive = stack.enter_context(tarfile.open(fileobj=file, mode="r|*"))
                    file = _member(archive, self)
                else:
                    start = file.read(6)
                    file.seek(0)
                    if start == b"\xfd7zXZ\0":
                        file = stack.enter_context(lzma.open(file))
                    elif start.startswith(MAGIC) or self.path.suffix == SUFFIX:
                        yield True, file
                        return
                    elif start and not start.lstrip().startswith(b"{"):
                        raise ConfigError(f"{self}: expected a capture, or recorded frames as JSON lines")
                yield False, file
        except (OSError, tarfile.TarError, lzma.LZMAError, EOFError) as error:
            raise TransportError(f"{self}: cannot be read: {error}") from error


def capture_files(path: str | os.PathLike[str]) -> list[CaptureFile]:
    """The files of a capture, in order: a file, all captures of a folder, or a file in a tar archive (`a.tar.xz/name`).

    Raises:
        ConfigError: there is none.
    """
    place = Path(path)
    if place.is_dir():
        files = sorted(place.glob(f"*{SUFFIX}"))
        if not files:
            raise ConfigError(f"{place}: expected captures (*{SUFFIX}) in this folder, found none")
        return [CaptureFile(file) for file in files]
    if place.exists():
        return [CaptureFile(place)]
    for parent in place.parents:
        if parent.is_file() and tarfile.is_tarfile(parent):
            return [CaptureFile(parent, str(place.relative_to(parent)))]
    raise ConfigError(f"{place}: there is no such file or folder")


def _member(archive: tarfile.TarFile, wanted: CaptureFile) -> IO[bytes]:
    for member in archive:
        if member.isfile() and wanted.member in {member.name, Path(member.name).name}:
            file = archive.extractfile(member)
            assert file is not None
            return file
    raise ConfigError(f"{wanted}: the archive has no file of that name")
