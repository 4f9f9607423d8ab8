"""A store on disk."""

import contextlib
import fcntl
import hashlib
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from kvevents.caches.slot_memory import Copier, Memories
from kvevents.caches.storage import StoredBlock
from kvevents.errors import CapacityError, ConfigError, KVEventsError
from kvevents.events import StorageMedium

MAGIC = b"KVTIER1\n"
CHECK_BYTES = 16
SUFFIX = ".block"
UNFINISHED = ".part"


class Header(msgspec.Struct, array_like=True, frozen=True):
    """What stands before the bytes of a block.

    Attributes:
        block: all that is known of it.
        size: how many bytes follow.
        check: their BLAKE2b digest of 16 bytes.
    """

    block: StoredBlock
    size: int
    check: bytes


class FileStore:
    """Keeps each block in a file of its own, which is there as a whole or not at all.

        magic (8) | header's length (4) | header's check (16) | header (msgpack) | bytes

    A file is written under another name, flushed to the disk and then renamed, so that a process or a machine that
    stops in between leaves the block out and nothing else. Whole headers and sizes are checked when the store is
    opened, bytes when they are read; what was cut off or altered is left out, removed and counted, what cannot be read
    is left out and counted.

    The files hold tokens and salts, for their owner's eyes only (mode 0600). One folder is for one model and one
    process at a time. Close it, or use it as a context manager.

    Args:
        folder: where the files are; made if need be.
        capacity: blocks that there is room for, of each component.
        medium: `DISK` or `EXTERNAL`.
        device: memory of the device, by component; by default there are no bytes to copy.
        host: host memory, by component.
        sync: False leaves it to the system when data reaches the disk. A machine that stops may then lose or cut off
            what was written last, which is noticed.

    Raises:
        ConfigError: the folder cannot be made or written, or another process has it open.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        capacity: int,
        medium: StorageMedium = StorageMedium.DISK,
        device: Memories | None = None,
        host: Memories | None = None,
        sync: bool = True,
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"capacity: expected room for 1 block or more, got {capacity}")
        self.medium = medium
        self.capacity = capacity
        self.damaged = 0
        """Files that were found cut off, altered or unreadable."""
        self._folder = Path(folder)
        self._copier = Copier(device, host)
        self._sync = sync
        self._lock = self._open()
        self._names: dict[str, set[str]] = {}
        self._found: list[StoredBlock] = []
        try:
            self._scan()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let another process have the folder. What is in it stays."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def copy(self, component: str, source: "array[int]", target: "array[int]", *, to_host: bool) -> None:
        """Copy between device and host memory, at once."""
        self._copier.copy(component, source, target, to_host=to_host)

    def write(self, blocks: Sequence[StoredBlock], source: "array[int]") -> None:
        """Keep blocks of one component.

        Raises:
            CapacityError: there is no room for all of them; none was kept.
            KVEventsError: the store is closed.
            OSError: the disk is full or fails; some may have been kept.
        """
        self._check_open()
        component = blocks[0].component
        names = self._names.setdefault(component, set())
        new = [block for block in blocks if block.key.hex() not in names]
        room = max(self.capacity - len(names), 0)
        if len(new) > room:
            message = f"{len(new)} blocks were to be kept, there is room for {room}"
            raise CapacityError(message, requested=len(new), available=room)
        for block, data in zip(blocks, self._copier.gather(component, source, len(blocks)), strict=True):
            self._put(self._path(block), packed(block, data))
            names.add(block.key.hex())

    def read(self, blocks: Sequence[StoredBlock], target: "array[int]") -> None:
        """Copy blocks of one component back to host slots.

        Raises:
            KVEventsError: one is damaged, or the store is closed.
            OSError: one is not there or cannot be read.
        """
        self._check_open()
        parts = []
        for block in blocks:
            path = self._path(block)
            header, data = unpacked(path)
            if header.block.key != block.key or check_of(data) != header.check:
                self.damaged += 1
                raise KVEventsError(f"{path}: expected the bytes of block {block.key.hex()}, which were altered")
            parts.append(data)
        self._copier.scatter(blocks[0].component, target, parts)

    def remove(self, blocks: Sequence[StoredBlock]) -> None:
        """Forget blocks.

        Raises:
            KVEventsError: the store is closed.
            OSError: a file cannot be removed.
        """
        self._check_open()
        for block in blocks:
            self._path(block).unlink(missing_ok=True)
            self._names.get(block.component, set()).discard(block.key.hex())

    def blocks(self) -> Sequence[StoredBlock]:
        """The blocks that were there when the store was opened."""
        return self._found

    def _open(self) -> int:
        """Make the folder, and keep other processes from it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"storage: expected a folder that can be written, got {self._folder}: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise ConfigError(f"storage: {self._folder} is in use by another process") from error
        return lock

    def _scan(self) -> None:
        """Find what a process before this one has left; what is not whole is removed."""
        for path in self._folder.glob(f"??/*{UNFINISHED}"):
            _discard(path)
        for path in self._folder.glob(f"??/*{SUFFIX}"):
            try:
                header = self._whole(path)
            except OSError:  # of the disk or this process: what is there may be whole, so it stays
                self.damaged += 1
                continue
            except KVEventsError:
                self.damaged += 1
                _discard(path)
                continue
            self._names.setdefault(header.block.component, set()).add(header.block.key.hex())
            self._found.append(header.block)

    def _whole(self, path: Path) -> Header:
        """The header of a file that is whole and where it belongs.

        Raises:
            KVEventsError: it is not.
            OSError: it cannot be read.
        """
        header, _ = unpacked(path, data=False)
        if self._path(header.block) != path:
            raise KVEventsError(f"{path}: expected a block of that name, got {header.block.key.hex()}")
        return header

    def _check_open(self) -> None:
        """Refuse to touch a folder that may be another process's by now."""
        if self._lock < 0:
            raise KVEventsError(f"storage: {self._folder} was closed; open a store anew")

    def _path(self, block: StoredBlock) -> Path:
        name = block.key.hex()
        return self._folder / name[:2] / f"{name}.{block.component}{SUFFIX}"

    def _put(self, path: Path, data: bytes) -> None:
        """Make a file appear as a whole."""
        unfinished = path.with_suffix(UNFINISHED)
        try:
            with open(_create(unfinished), "wb") as file:
                file.write(data)
                if self._sync:
                    file.flush()
                    os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise


def _discard(path: Path) -> None:
    """Remove what is of no use; where that fails it stays, and is found to be of no use again."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _create(path: Path) -> int:
    """Open a new file; its folder is mostly there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        return os.open(path, flags, 0o600)


def check_of(data: bytes) -> bytes:
    """What tells whether bytes are those that were written."""
    return hashlib.blake2b(data, digest_size=CHECK_BYTES).digest()


def packed(block: StoredBlock, data: bytes) -> bytes:
    """A block as the bytes of its file."""
    check = check_of(data)
    header = msgspec.msgpack.encode(Header(block, len(data), check))
    header_check = check_of(header)
    return b"".join([MAGIC, len(header).to_bytes(4, "little"), header_check, header, data])


def unpacked(path: Path, *, data: bool = True) -> tuple[Header, bytes]:
    """The header and the bytes in a file; the bytes, or none, are of the right number, but not checked.

    Raises:
        KVEventsError: the file is cut off, or not one of these.
        OSError: it cannot be read.
    """
    if not path.is_file():
        raise KVEventsError(f"{path}: expected a file with a block")
    with path.open("rb") as file:
        start = file.read(len(MAGIC) + 4 + CHECK_BYTES)
        length = int.from_bytes(start[len(MAGIC) : len(MAGIC) + 4], "little")
        left = os.fstat(file.fileno()).st_size - len(start)
        header = file.read(min(length, left))
        check = check_of(header)
        if not start.startswith(MAGIC) or check != start[len(MAGIC) + 4 :]:
            raise KVEventsError(f"{path}: expected the header of a block, got something else or part of one")
        try:
            decoded = msgspec.msgpack.decode(header, type=Header)
        except msgspec.DecodeError as error:
            raise KVEventsError(f"{path}: expected the header of a block: {error}") from error
        if left - length != decoded.size:
            raise KVEventsError(f"{path}: expected {decoded.size} bytes after the header, got {left - length}")
        return decoded, file.read() if data else b""
