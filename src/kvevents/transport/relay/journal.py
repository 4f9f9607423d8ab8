"""What a relay needs to go on after it was killed: an SQLite database in a folder of its own.

Each batch is committed before it is sent, into SQLite's write-ahead log, so that whatever ends the process loses
nothing that a consumer may have seen. The log is synced by a thread in the background only: a machine that loses power
may lose the last batches. Then numbers go on far above all that were used (`SKIP`), so that none is used twice.
"""

import contextlib
import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from kvevents.errors import ConfigError, TransportError
from kvevents.transport.picture import Position
from kvevents.transport.relay.backlog import Sent

SKIP = 1 << 20
"""Numbers that are passed over when it is not known which were used."""

_VERSION = 1
_BUSY_S = 10.0
_CHECKPOINT_BYTES = 8 << 20
_MOST_WAL_BYTES = 128 << 20
_NO_RANK = -1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS streams (
    id INTEGER PRIMARY KEY, worker TEXT NOT NULL, rank INTEGER NOT NULL,
    generation INTEGER NOT NULL DEFAULT 0, compacted_to INTEGER NOT NULL DEFAULT -1,
    endpoint TEXT NOT NULL DEFAULT '', replay_endpoint TEXT NOT NULL DEFAULT '', UNIQUE (worker, rank)
);
CREATE TABLE IF NOT EXISTS batches (
    stream INTEGER NOT NULL, sequence INTEGER NOT NULL, rank INTEGER NOT NULL, at REAL NOT NULL, payload BLOB NOT NULL,
    source_sequence INTEGER, source_digest BLOB, PRIMARY KEY (stream, sequence)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS compacted (
    stream INTEGER NOT NULL, generation INTEGER NOT NULL, number INTEGER NOT NULL, rank INTEGER NOT NULL,
    payload BLOB NOT NULL, PRIMARY KEY (stream, generation, number)
) WITHOUT ROWID;
"""


class Restored(NamedTuple):
    """A stream as it was left.

    Attributes:
        compacted: rank and bytes of each batch of the compacted log.
        compacted_to: the last number that is in it; -1: none.
        recent: the batches after it.
        position: of the source; None: not known.
        endpoint: where it was published; empty: nowhere so far.
        replay_endpoint: where it was repeated.
        is_sure: whether the last number used is known.
    """

    compacted: list[tuple[int | None, bytes]]
    compacted_to: int
    recent: list[Sent]
    position: Position | None
    endpoint: str
    replay_endpoint: str
    is_sure: bool


class Journal:
    """The database. One thread appends and commits; one other may compact meanwhile.

    Args:
        folder: made if it is not there; one relay at a time uses it.

    Raises:
        ConfigError: another relay uses it, or it was written by another version.
        TransportError: it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._open = contextlib.ExitStack()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
            self._open.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._path = folder / "relay.db"
            # What was salted or attributed in prompts is nobody else's business.
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
            self._database = self._connect()
            self.is_sure = self._begin()
        except BlockingIOError:
            self._open.close()
            raise ConfigError(f"log {folder}: another relay uses it; give each a folder of its own") from None
        except (OSError, sqlite3.Error) as error:
            self._open.close()
            raise TransportError(f"log {folder}: cannot be written: {error}") from error
        except BaseException:
            self._open.close()
            raise
        self._compacting = threading.Lock()
        self._uncommitted = False
        self._unsynced = 0

    def restore(self, worker: str, rank: int | None) -> tuple[int, Restored]:
        """A stream's id, and the stream as it was left."""
        database, key = self._database, (worker, _NO_RANK if rank is None else rank)
        database.execute("INSERT OR IGNORE INTO streams (worker, rank) VALUES (?, ?)", key)
        stream, generation, compacted_to, endpoint, replay_endpoint = database.execute(
            "SELECT id, generation, compacted_to, endpoint, replay_endpoint FROM streams WHERE (worker, rank) = (?, ?)",
            key,
        ).fetchone()
        # What a compaction left behind that did not come to its end.
        database.execute("DELETE FROM compacted WHERE stream = ? AND generation <> ?", (stream, generation))
        database.execute("DELETE FROM batches WHERE stream = ? AND sequence <= ?", (stream, compacted_to))
        compacted = database.execute("SELECT rank, payload FROM compacted WHERE stream = ? ORDER BY number", (stream,))
        rows = database.execute(
            "SELECT sequence, payload, rank, at, source_sequence, source_digest FROM batches WHERE stream = ?"
            " ORDER BY sequence",
            (stream,),
        ).fetchall()
        position = Position(*rows[-1][4:]) if rows and rows[-1][4] is not None else None
        return stream, Restored(
            [(_rank(number), payload) for number, payload in compacted],
            compacted_to,
            [Sent(sequence, payload, _rank(number), at) for sequence, payload, number, at, *_ in rows],
            position,
            endpoint,
            replay_endpoint,
            self.is_sure,
        )

    def note_endpoints(self, stream: int, endpoint: str, replay_endpoint: str) -> None:
        """Where a stream is published and repeated."""
        self._database.execute(
            "UPDATE streams SET endpoint = ?, replay_endpoint = ? WHERE id = ?", (endpoint, replay_endpoint, stream)
        )

    def append(self, stream: int, batches: Iterable[Sent], position: Position | None) -> None:
        """Adds batches; `position`: of the source after them."""
        if not self._uncommitted:
            self._database.execute("BEGIN IMMEDIATE")
            self._uncommitted = True
        source = (None, None) if position is None else position
        batches = list(batches)
        self._unsynced += sum(len(sent.payload) for sent in batches)
        self._database.executemany(
            "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (stream, sent.sequence, _NO_RANK if sent.rank is None else sent.rank, sent.at, sent.payload, *source)
                for sent in batches
            ],
        )

    def commit(self) -> None:
        """Makes what was added survive this process."""
        if self._uncommitted:
            self._database.execute("COMMIT")
            self._uncommitted = False

    def roll_back(self) -> None:
        """After an error: what was added is not in the log."""
        self._uncommitted = False
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def compact(self, stream: int, compacted_to: int, batches: Iterable[tuple[int | None, bytes]]) -> None:
        """Replaces a stream's batches up to a number by those of its compacted log; for a thread in the background."""
        with self._compacting, self._second() as database:
            generation = 1 + database.execute("SELECT generation FROM streams WHERE id = ?", (stream,)).fetchone()[0]
            for number, (rank, payload) in enumerate(batches):  # in small steps: each keeps the other thread waiting
                row = (stream, generation, number, _NO_RANK if rank is None else rank, payload)
                database.execute("INSERT OR REPLACE INTO compacted VALUES (?, ?, ?, ?, ?)", row)
            # From here on a restart finds the new generation.
            database.execute(
                "UPDATE streams SET generation = ?, compacted_to = ? WHERE id = ?", (generation, compacted_to, stream)
            )
            self._delete(database, "batches", "stream = ? AND sequence <= ?", (stream, compacted_to))
            self._delete(database, "compacted", "stream = ? AND generation <> ?", (stream, generation))

    def sync(self) -> None:
        """Syncs what was committed, if it is much; for a thread in the background."""
        wal = self._path.with_name(f"{self._path.name}-wal")
        with contextlib.suppress(OSError), self._compacting:
            if self._unsynced >= _CHECKPOINT_BYTES:
                self._unsynced = 0
                # The first kind waits for nobody, and nobody for it; the second makes writers wait, and begins anew.
                kind = "PASSIVE" if wal.stat().st_size < _MOST_WAL_BYTES else "TRUNCATE"
                with self._second() as database:
                    database.execute(f"PRAGMA wal_checkpoint({kind})").fetchall()

    def close(self) -> None:
        """Commits, syncs and closes; idempotent."""
        with self._compacting:
            self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        self._open.callback(database.close)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        return database

    @contextlib.contextmanager
    def _second(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA wal_autocheckpoint = 0")
            yield database

    def _begin(self) -> bool:
        """Makes what is missing; whether this machine has been up since the database was last used."""
        self._database.executescript(_SCHEMA)
        facts = dict(self._database.execute("SELECT name, value FROM facts"))
        if int(facts.get("version", _VERSION)) != _VERSION:
            raise ConfigError(f"log {self._path}: expected version {_VERSION}, got {facts['version']}; choose another")
        boot = _BOOT_ID.read_text() if _BOOT_ID.exists() else ""
        now = {"version": str(_VERSION), "boot": boot}
        self._database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", now.items())
        return bool(boot) and facts.get("boot", boot) == boot

    def _delete(self, database: sqlite3.Connection, table: str, where: str, values: tuple[int, ...]) -> None:
        key = {"batches": "stream, sequence", "compacted": "stream, generation, number"}[table]
        statement = f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {where} LIMIT 100)"  # noqa: S608 (no input)
        while database.execute(statement, values).rowcount > 0:
            pass


def _rank(number: int) -> int | None:
    return None if number == _NO_RANK else number
